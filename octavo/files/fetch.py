"""Reads what a request names by URL, and nothing else that this machine can reach. Knows no formats.

A URL from a client may point at the cloud's metadata service, at a database next door, or at a name whose address
changes between check and use. So the name is resolved once, every address it has must be public, and the connection
goes to the checked address. Redirects, proxies, other schemes and names with a password in them are refused.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import NamedTuple

import httpx

from octavo.errors import ClientError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS = {"http": 80, "https": 443}


class Fetched(NamedTuple):
    """A body, and the media type that its server gave it ("" if none)."""

    content: bytes
    media_type: str


def is_public(address: Address) -> bool:
    """Whether an address is on the open internet. Those that wrap another address (IPv4 in IPv6) are not."""
    if isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.sixtofour or address.teredo or address.is_site_local
    ):
        return False
    return address.is_global and not (address.is_reserved or address.is_multicast or address.is_unspecified)


class Fetcher:
    """Fetches URLs within bounds.

    Args:
        allowed_domains: hosts that may be asked, and their subdomains; empty for all.
        max_bytes: largest body.
        timeout_s: longest time for all of it, the name's resolution included.
        allows: which addresses may be connected to.
    """

    def __init__(
        self,
        allowed_domains: tuple[str, ...] = (),
        *,
        max_bytes: int = 256 << 20,
        timeout_s: float = 30.0,
        allows: Callable[[Address], bool] = is_public,
    ) -> None:
        self._allowed_domains = tuple(domain.lower().strip(".") for domain in allowed_domains)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._allows = allows

    async def fetch(self, url: str, *, param: str | None = None) -> Fetched:
        """The body behind a URL.

        Args:
            param: the request field that holds the URL, for errors.

        Raises:
            ClientError: the URL is of no kind that may be fetched, or did not answer 200 within the bounds.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                parsed = self._check_url(url)
                address = await self._resolve(parsed)
                return await self._get(parsed, address)
        except TimeoutError:
            raise ClientError(f"{_shown(url)} was not read within {self._timeout_s:g} s", param=param) from None
        except httpx.HTTPError as err:
            raise ClientError(f"{_shown(url)} cannot be read: {err or type(err).__name__}", param=param) from None
        except ClientError as err:
            err.param = param
            raise

    def _check_url(self, url: str) -> httpx.URL:
        try:
            parsed = httpx.URL(url)
            host = parsed.host
        except (httpx.InvalidURL, ValueError) as err:
            raise ClientError(f"{_shown(url)} is not a URL: {err}") from None
        if parsed.scheme not in DEFAULT_PORTS:
            raise ClientError(f"{_shown(url)} has the scheme {parsed.scheme!r}; only http and https are fetched")
        if parsed.userinfo:
            raise ClientError("a URL must not hold a user name or password")
        if not host:
            raise ClientError(f"{_shown(url)} names no host")
        if self._allowed_domains and not any(
            host == domain or host.endswith(f".{domain}") for domain in self._allowed_domains
        ):
            raise ClientError(f"the host {host!r} is not among those of --allowed-media-domains")
        return parsed

    async def _resolve(self, url: httpx.URL) -> Address:
        """The address to connect to: the first of the host's, all of which must be allowed."""
        port = url.port or DEFAULT_PORTS[url.scheme]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as err:
            raise ClientError(f"the host {url.host!r} has no address: {err}") from None
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        if not addresses or not all(self._allows(address) for address in addresses):
            raise ClientError(f"the host {url.host!r} is not on the public internet, so it is not asked")
        return addresses[0]

    async def _get(self, url: httpx.URL, address: Address) -> Fetched:
        # An environment's proxy would resolve the name again, so none is used. No compression: its size is bounded
        # before it is undone.
        headers = {"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity"}
        pinned = url.copy_with(host=str(address))
        async with (
            httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=self._timeout_s) as client,
            client.stream("GET", pinned, headers=headers, extensions={"sni_hostname": url.host}) as response,
        ):
            if response.is_redirect:
                raise ClientError(f"{_shown(str(url))} redirects elsewhere; send the final URL")
            if response.status_code != 200:
                raise ClientError(f"{_shown(str(url))} was answered {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ClientError(f"{_shown(str(url))} is sent compressed although that was not asked for")
            return Fetched(await self._body(response, url), response.headers.get("content-type", ""))

    async def _body(self, response: httpx.Response, url: httpx.URL) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > self._max_bytes:
                raise ClientError(f"{_shown(str(url))} is larger than {self._max_bytes} bytes")
            parts.append(part)
        return b"".join(parts)


def _shown(url: str) -> str:
    """A URL as an error may quote it: short, and without what may be a secret behind the question mark."""
    plain = url.partition("?")[0].partition("#")[0]
    if "@" in plain:
        plain = plain.rpartition("@")[2]
    return repr(plain if len(plain) <= 200 else plain[:197] + "...")
