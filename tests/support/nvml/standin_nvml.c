/* A STAND-IN for NVML (libnvidia-ml.so.1), for flowctl's tests. It is not NVIDIA's library and touches no driver.
 *
 * The tests compile it under NVML's file name, so that the real pynvml loads it, and describe a machine in a text file
 * that the variable NVML_STANDIN names. The file is read anew at every question: tests change it while a worker runs.
 *
 *   init CODE                      nvmlInit answers CODE (9: no driver); so it does without a file
 *   gpu UUID TOTAL USED NAME       a card: MiB of memory, MiB in use, a name that may have blanks
 *   mig on                         the card before it is in MIG mode
 *   slice UUID TOTAL USED NAME     a slice of the card before it
 *   pid PID                        a process on the card or slice before it
 *   pids CODE                      the question for its processes is answered with CODE (3: not supported)
 *   broken                         the card before it does not answer
 *   slow SECONDS                   nvmlInit takes so long
 *
 * Only what flowctl asks is here. Handles are places in the list, so a file may change memory and processes, not cards.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 64
#define MIB 1048576ULL

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15 };

typedef struct {
    char uuid[96], name[96];
    unsigned long long total, used;
    int parent; /* place of the card, -1 for a card */
    int is_sliced, is_broken, pids_code;
    unsigned pids[MOST];
    unsigned n_pids;
} Unit;

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;

static Unit units[MOST];
static int n_units, init_code, init_s;

static void read_machine(void) {
    char line[512];
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    n_units = 0;
    init_s = 0;
    init_code = file ? OK : NO_DRIVER;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        Unit *last = n_units ? &units[n_units - 1] : NULL;
        char uuid[96], name[96] = "";
        unsigned long long total, used;
        unsigned number;
        int is_slice = !strncmp(line, "slice ", 6);
        if ((is_slice || !strncmp(line, "gpu ", 4)) && n_units < MOST &&
            sscanf(line, "%*s %95s %llu %llu %95[^\n]", uuid, &total, &used, name) >= 3) {
            Unit *unit = &units[n_units];
            memset(unit, 0, sizeof *unit);
            strcpy(unit->uuid, uuid);
            strcpy(unit->name, name);
            unit->total = total * MIB;
            unit->used = used * MIB;
            unit->parent = -1;
            if (is_slice)
                for (int i = n_units - 1; i >= 0; i--)
                    if (units[i].parent < 0) { unit->parent = i; break; }
            n_units++;
        } else if (!strncmp(line, "mig on", 6) && last) last->is_sliced = 1;
        else if (!strncmp(line, "broken", 6) && last) last->is_broken = 1;
        else if (sscanf(line, "pid %u", &number) == 1 && last && last->n_pids < MOST) last->pids[last->n_pids++] = number;
        else if (sscanf(line, "pids %u", &number) == 1 && last) last->pids_code = (int)number;
        else if (sscanf(line, "init %u", &number) == 1) init_code = (int)number;
        else if (sscanf(line, "slow %u", &number) == 1) init_s = (int)number;
    }
    fclose(file);
}

static Unit *unit_of(void *handle) {
    long place = (long)handle - 1;
    read_machine();
    return place >= 0 && place < n_units ? &units[place] : NULL;
}

static int give(Unit *unit, void **handle) {
    if (unit->is_broken) return LOST;
    *handle = (void *)(long)(unit - units + 1);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    read_machine();
    if (init_s) sleep((unsigned)init_s);
    return init_code;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error of the stand-in";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    read_machine();
    *count = 0;
    for (int i = 0; i < n_units; i++) *count += units[i].parent < 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    read_machine();
    for (int i = 0; i < n_units; i++)
        if (units[i].parent < 0 && index-- == 0) return give(&units[i], handle);
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    read_machine();
    for (int i = 0; i < n_units; i++)
        if (!strcmp(units[i].uuid, uuid)) return give(&units[i], handle);
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    Unit *unit = unit_of(handle);
    if (!unit) return INVALID;
    *current = *pending = (unsigned)unit->is_sliced;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    (void)handle;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part) {
    Unit *card = unit_of(handle);
    for (int i = 0; card && i < n_units; i++)
        if (units[i].parent == card - units && index-- == 0) return give(&units[i], part);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    Unit *unit = unit_of(handle);
    if (!unit) return INVALID;
    snprintf(text, size, "%s", unit->uuid);
    return OK;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    Unit *unit = unit_of(handle);
    if (!unit) return INVALID;
    snprintf(text, size, "%s", unit->name);
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Unit *unit = unit_of(handle);
    if (!unit) return INVALID;
    memory->total = unit->total;
    memory->used = unit->used;
    memory->free = unit->total - unit->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory) {
    Unit *unit = unit_of(handle);
    if (!unit) return INVALID;
    memory->total = unit->total;
    memory->reserved = 0;
    memory->used = unit->used;
    memory->free = unit->total - unit->used;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    Unit *unit = unit_of(handle);
    unsigned room = *count;
    if (!unit) return INVALID;
    if (unit->pids_code) return unit->pids_code;
    *count = unit->n_pids;
    if (room < unit->n_pids) return TOO_SMALL;
    for (unsigned i = 0; i < unit->n_pids; i++) {
        memset(&found[i], 0, sizeof found[i]);
        found[i].pid = unit->pids[i];
    }
    return OK;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    (void)handle;
    (void)found;
    *count = 0;
    return OK;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    (void)handle;
    (void)found;
    *count = 0;
    return UNSUPPORTED;
}
