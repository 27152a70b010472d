"""The address of a server: one frozen value, read from any spelling in use and written in redis-py's or kombu's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from flowctl.broker.errors import BrokerURLError

KINDS: Mapping[str, str] = {
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
    "valkey+socket": "unix",
    "sentinel": "sentinel",
}
"""Accepted scheme → what it means."""

TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile")
SENTINEL_OPTIONS = ("master", "sentinel_password", "sentinel_username")
CERT_REQS = ("none", "optional", "required")
DEFAULT_PORTS: Mapping[str, int] = {"redis": 6379, "rediss": 6379, "sentinel": 26379}
EXAMPLE = "for example redis://:PASSWORD@HOST:6379/0"


@dataclass(frozen=True)
class BrokerURL:
    """Where a server is and how to get in.

    `kind` is redis, rediss (TLS), unix or sentinel. `hosts` is empty for unix and may hold several for sentinel.
    `options` holds TLS options, or those of sentinel. The password never shows in `repr` or `safe()`.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    database: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, url: str) -> BrokerURL:
        """Reads redis:// rediss:// valkey:// valkeys:// unix:// redis+socket:// sentinel://.

        BrokerURLError names the part that is wrong, never the password.
        """
        scheme, found, rest = url.strip().partition("://")
        if not found:
            raise BrokerURLError("the server's address has no scheme", cure=EXAMPLE)
        kind = KINDS.get(scheme.lower())
        if kind is None:
            raise BrokerURLError(
                f"unknown scheme {scheme!r} in the server's address", cure=f"use one of {_listed(KINDS)}"
            )
        rest, _, fragment = rest.partition("#")
        if fragment:
            raise BrokerURLError("the server's address has a fragment ('#…')", cure="write '#' in a password as %23")
        rest, _, query = rest.partition("?")
        userinfo, _, location = rest.rpartition("@")
        username, _, password = userinfo.partition(":")
        if "/" in userinfo:
            raise BrokerURLError("the user or password in the server's address holds '/'", cure="write it as %2F")
        authority, slash, path = location.partition("/")
        if kind == "unix":
            if authority:
                raise BrokerURLError(
                    f"a socket address has no host, but here is {authority!r}", cure="unix:///PATH?db=0"
                )
            if not path:
                raise BrokerURLError("a socket address needs a path", cure="for example unix:///run/valkey.sock?db=0")
            hosts: tuple[tuple[str, int], ...] = ()
            database_text = ""
        else:
            hosts = _hosts(kind, authority)
            database_text = unquote(path).strip("/")
        options = _options(kind, query)
        database_text = options.pop("db", options.pop("virtual_host", database_text))
        made = cls(
            kind=kind,
            hosts=hosts,
            path=unquote(slash + path) if kind == "unix" else "",
            database=_database(database_text),
            username=unquote(username),
            password=unquote(password),
            options=tuple(sorted(options.items())),
        )
        if kind == "sentinel" and not options.get("master"):
            raise BrokerURLError("a sentinel address needs the name of its master", cure="add ?master=NAME")
        return made

    def option(self, name: str) -> str:
        """The option's text, or an empty one."""
        return dict(self.options).get(name, "")

    @property
    def is_remote(self) -> bool:
        """Whether other machines could be behind it: not a socket and not a loopback address."""
        return any(host not in ("localhost", "::1") and not host.startswith("127.") for host, _ in self.hosts)

    def url(self) -> str:
        """The full address, password included, in the spelling of redis-py (unix://, redis://, rediss://)."""
        return self._text(password=quote(self.password, safe=""))

    def safe(self) -> str:
        """The address for people and logs: the password is hidden."""
        shown = replace(self, options=tuple(pair for pair in self.options if pair[0] != "sentinel_password"))
        return shown._text(password="***" if self.password else "")

    def _text(self, *, password: str) -> str:
        login = f"{quote(self.username, safe='')}:{password}@" if self.username or password else ""
        options = list(self.options)
        if self.kind == "unix":
            options.insert(0, ("db", str(self.database)))
            place = quote(self.path)
        else:
            place = ";".join(f"{_bracketed(host)}:{port}" for host, port in self.hosts) + f"/{self.database}"
        return f"{self.kind}://{login}{place}" + (f"?{urlencode(options)}" if options else "")

    def kombu_url(self) -> str:
        """The same server as kombu spells it. A socket's database is `virtual_host`: kombu ignores `db`."""
        login = ""
        if self.username or self.password:
            login = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@"
        if self.kind == "unix":
            return f"redis+socket://{login}{quote(self.path)}?virtual_host={self.database}"
        if self.kind == "sentinel":
            return ";".join(f"sentinel://{login}{_bracketed(host)}:{port}/{self.database}" for host, port in self.hosts)
        host, port = self.hosts[0]
        place = f"{self.kind}://{login}{_bracketed(host)}:{port}/{self.database}"
        if self.kind == "rediss":
            # Without any ssl_ option kombu checks no certificate.
            return f"{place}?{urlencode({'ssl_cert_reqs': 'required', **dict(self.options)})}"
        return place

    def transport_options(self) -> dict[str, Any]:
        """What kombu needs beside the URL: the master's name and the sentinels' own login."""
        if self.kind != "sentinel":
            return {}
        options: dict[str, Any] = {"master_name": self.option("master")}
        if self._sentinel_login():
            options["sentinel_kwargs"] = self._sentinel_login()
        return options

    def _sentinel_login(self) -> dict[str, str]:
        login = {"username": self.option("sentinel_username"), "password": self.option("sentinel_password")}
        return {name: value for name, value in login.items() if value}

    def redis_client(self, **options: Any) -> Any:
        """A `redis.Redis` that connects on first use; never retries, since a script sent twice runs twice.

        Timeouts: 5 s per answer, 3 s to connect; keyword options override.
        Answers are text unless `decode_responses=False`.
        """
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
        from redis.sentinel import Sentinel

        settings: dict[str, Any] = {
            "db": self.database,
            "username": self.username or None,
            "password": self.password or None,
            "socket_timeout": 5.0,
            "socket_connect_timeout": 3.0,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 15,
            "decode_responses": True,
            # RESP3 would add a handshake of its own at each connection, and gives us nothing.
            "protocol": 2,
            **options,
        }
        if self.kind == "unix":
            return Redis(unix_socket_path=self.path, **settings)
        settings.setdefault("socket_keepalive", True)
        if self.kind == "sentinel":
            login = {"socket_timeout": 3.0, "socket_connect_timeout": 3.0, "retry": Retry(NoBackoff(), 0)}
            finder = Sentinel(list(self.hosts), sentinel_kwargs={**login, **self._sentinel_login()})
            return finder.master_for(self.option("master"), **settings)
        host, port = self.hosts[0]
        if self.kind == "rediss":
            tls: dict[str, Any] = dict(self.options)
            if "ssl_check_hostname" in tls:
                tls["ssl_check_hostname"] = tls["ssl_check_hostname"].lower() != "false"
            if tls.get("ssl_cert_reqs") == "none":
                tls.setdefault("ssl_check_hostname", False)
            return Redis(host=host, port=port, ssl=True, **settings, **tls)
        return Redis(host=host, port=port, **settings)


def _listed(names: Mapping[str, str] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _hosts(kind: str, authority: str) -> tuple[tuple[str, int], ...]:
    texts = [text for text in authority.replace(",", ";").split(";") if text] if kind == "sentinel" else [authority]
    if not texts or not texts[0]:
        raise BrokerURLError("the server's address has no host", cure=EXAMPLE)
    return tuple(split_host_port(text, default_port=DEFAULT_PORTS[kind]) for text in texts)


def split_host_port(text: str, *, default_port: int | None = None) -> tuple[str, int]:
    """Reads HOST:PORT, [IPV6]:PORT; without a default the port is required."""
    if text.startswith("["):
        host, closed, tail = text[1:].partition("]")
        if not closed or (tail and not tail.startswith(":")):
            raise BrokerURLError(f"malformed host {text!r}", cure="write an IPv6 address as [::1]:6379")
        port_text = tail[1:]
    else:
        host, _, port_text = text.partition(":")
        if ":" in port_text:
            raise BrokerURLError(f"malformed host {text!r}", cure="write an IPv6 address as [::1]:6379")
    if not host:
        raise BrokerURLError(f"no host in {text!r}", cure="write HOST:PORT")
    if not port_text:
        if default_port is None:
            raise BrokerURLError(f"no port in {text!r}", cure="write HOST:PORT")
        return unquote(host), default_port
    if not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text) <= 65535):
        raise BrokerURLError(f"port {port_text!r} is not a number from 1 to 65535", cure="write HOST:PORT")
    return unquote(host), int(port_text)


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise BrokerURLError(f"database {text!r} is not a number", cure="end the address with /0")
    return int(text)


def _options(kind: str, query: str) -> dict[str, str]:
    allowed = ["db", "virtual_host"]
    if kind == "rediss":
        allowed += TLS_OPTIONS
    if kind == "sentinel":
        allowed += SENTINEL_OPTIONS
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in allowed:
            hint = "use rediss:// for TLS" if name in TLS_OPTIONS else f"known here: {', '.join(sorted(allowed))}"
            raise BrokerURLError(f"unknown option {name!r} in the server's address", cure=hint)
        options[name] = value
    if options.get("ssl_cert_reqs", "required") not in CERT_REQS:
        raise BrokerURLError(
            f"ssl_cert_reqs {options['ssl_cert_reqs']!r} is unknown", cure=f"use one of {', '.join(CERT_REQS)}"
        )
    return options
