"""Names for runs that were given none: `digits-brave-otter`, unique by being tried until one is free."""

import secrets

_FIRST = ("amber brave calm clever crisp dapper eager early fair fleet gentle glad golden hardy honest jolly keen kind lively lucid merry neat noble "
          "patient plucky proud quick quiet rapid ready robust serene sharp silent steady sunny swift tidy vivid warm wise witty").split()  # fmt: skip
_SECOND = ("badger bear beaver bison crane deer dolphin eagle falcon ferret finch fox gecko hare hawk heron ibex jay kestrel lark lemur lion lynx "
           "marten moose newt otter owl panda pike puffin raven robin salmon seal sparrow stoat swan tern tiger trout viper walrus weasel wolf "
           "wren").split()  # fmt: skip


def readable_name(base: str, attempt: int) -> str:
    """A name made of the plan's and two words; later attempts get a number as well."""
    name = f"{base}-{secrets.choice(_FIRST)}-{secrets.choice(_SECOND)}"
    return name if attempt < 10 else f"{name}-{secrets.token_hex(2)}"
