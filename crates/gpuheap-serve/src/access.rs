//! Where to listen, and which hosts and tokens a request may come with.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use crate::error::Error;

/// The first port that is tried where none was asked for.
const FIRST_PORT: u16 = 7650;
/// Random bytes of a token.
const TOKEN_BYTES: usize = 24;

/// Where to listen: `7650`, `localhost`, `127.0.0.1:7650`, `[::1]:7650`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    ip: IpAddr,
    port: Option<u16>,
}

impl Default for Listen {
    fn default() -> Self {
        Self { ip: Ipv4Addr::LOCALHOST.into(), port: None }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no address of this machine: write `127.0.0.1:7650`, `[::1]:7650` or a port");
        if let Ok(port) = text.parse() {
            return Ok(Self { port: Some(port), ..Self::default() });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { ip: address.ip(), port: Some(address.port()) });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') => (host, Some(port.parse().map_err(|_| bad())?)),
            _ => (text, None),
        };
        let ip = if host.eq_ignore_ascii_case("localhost") {
            Ipv4Addr::LOCALHOST.into()
        } else {
            host.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| bad())?
        };
        Ok(Self { ip, port })
    }
}

impl Listen {
    /// Whether only programs on this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.ip.to_canonical().is_loopback()
    }

    /// The addresses to try, in this order.
    pub(crate) fn candidates(&self) -> Vec<SocketAddr> {
        let ports = match self.port {
            Some(port) => vec![port],
            None => (FIRST_PORT..FIRST_PORT + 20).chain([0]).collect(),
        };
        ports.into_iter().map(|port| SocketAddr::new(self.ip, port)).collect()
    }
}

/// Who is answered.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    address: SocketAddr,
    token: Option<String>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Access").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Access {
    /// Access to a server that listens on `address`: with a token, unless only this machine can connect.
    pub fn new(address: SocketAddr) -> Result<Self, Error> {
        let token = if address.ip().to_canonical().is_loopback() {
            None
        } else {
            let mut bytes = [0; TOKEN_BYTES];
            getrandom::fill(&mut bytes).map_err(|_| Error::Random)?;
            Some(hex(&bytes))
        };
        Ok(Self { address, token })
    }

    /// The address to open in a browser.
    #[must_use]
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let host = SocketAddr::new(if ip.is_unspecified() { own_address(ip) } else { ip }, self.address.port());
        match &self.token {
            Some(token) => format!("http://{host}/?token={token}"),
            None => format!("http://{host}/"),
        }
    }

    /// Whether a request needs a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether this is the token.
    pub(crate) fn is_token(&self, given: &str) -> bool {
        let Some(token) = &self.token else { return true };
        // Every character is looked at, so that the time tells nothing.
        let differences = token.bytes().zip(given.bytes()).fold(0, |sum, (one, other)| sum | (one ^ other));
        token.len() == given.len() && differences == 0
    }

    /// The cookie's name. Cookies do not know ports: two servers must not share one.
    pub(crate) fn cookie(&self) -> String {
        format!("gpuheap-{}", self.address.port())
    }

    /// What the first visit leaves in the browser.
    pub(crate) fn set_cookie(&self) -> Option<String> {
        let token = self.token.as_ref()?;
        Some(format!("{}={token}; Path=/; HttpOnly; SameSite=Strict", self.cookie()))
    }

    /// Whether a request's `Host` names this server. Ports are not looked at: a tunnel has another one, and a foreign
    /// name stays foreign.
    pub(crate) fn is_own_host(&self, host: &str) -> bool {
        let name = without_port(host);
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let Ok(ip) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() else { return false };
        let (ip, own) = (ip.to_canonical(), self.address.ip().to_canonical());
        ip == own || ip.is_loopback() || own.is_unspecified()
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The host of `host:port`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && is_host(name) => name,
        _ => host,
    }
}

/// Whether this is a whole host: an IPv6 address has brackets.
fn is_host(name: &str) -> bool {
    !name.contains(':') || (name.starts_with('[') && name.ends_with(']'))
}

/// An address under which others may reach this machine. Nothing is sent.
fn own_address(any: IpAddr) -> IpAddr {
    let (local, remote) = if any.is_ipv4() { ("0.0.0.0:0", "192.0.2.1:9") } else { ("[::]:0", "[2001:db8::1]:9") };
    let asked = UdpSocket::bind(local).and_then(|socket| {
        socket.connect(remote)?;
        socket.local_addr()
    });
    asked.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: &str) -> Access {
        Access::new(address.parse().unwrap()).unwrap()
    }

    #[test]
    fn places_to_listen() {
        for (text, address, local) in [
            ("8000", "127.0.0.1:8000", true),
            ("localhost:80", "127.0.0.1:80", true),
            ("127.0.0.1", "127.0.0.1:7650", true),
            ("[::1]:9", "[::1]:9", true),
            ("::1", "[::1]:7650", true),
            ("[::1]", "[::1]:7650", true),
            ("0.0.0.0:0", "0.0.0.0:0", false),
            ("::", "[::]:7650", false),
            ("10.1.2.3", "10.1.2.3:7650", false),
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.candidates()[0], address.parse().unwrap(), "{text}");
            assert_eq!(listen.is_local(), local, "{text}");
        }
        for text in ["", ":80", "example.org", "127.0.0.1:x", "127.0.0.1:70000", "http://127.0.0.1"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn own_hosts() {
        let own = access("127.0.0.1:7650");
        for host in
            ["localhost", "LOCALHOST:7650", "127.0.0.1:7650", "127.0.0.1:9000", "[::1]:7650", "[::1]", "127.0.0.2"]
        {
            assert!(own.is_own_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:7650",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "10.0.0.1",
            "0.0.0.0",
            "127.0.0.1:7650:1",
            "::1:7650x",
            "localhost:7650@evil.example",
            "[::2]:1",
            "local host",
        ] {
            assert!(!own.is_own_host(host), "{host}");
        }
        assert!(access("0.0.0.0:1").is_own_host("10.0.0.1:1"));
        assert!(!access("0.0.0.0:1").is_own_host("evil.example"));
        assert!(access("10.0.0.1:1").is_own_host("10.0.0.1:1"));
        assert!(!access("10.0.0.1:1").is_own_host("10.0.0.2:1"));
    }

    #[test]
    fn only_others_need_a_token() {
        assert_eq!(access("127.0.0.1:7650").url(), "http://127.0.0.1:7650/");
        assert!(!access("[::1]:7650").has_token());
        let open = access("10.0.0.1:7650");
        let url = open.url();
        let (_, token) = url.split_once("http://10.0.0.1:7650/?token=").unwrap();
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        assert!(open.is_token(token));
        assert!(!open.is_token("") && !open.is_token(&token[1..]) && !open.is_token(&format!("{token}0")));
        assert_ne!(url, access("10.0.0.1:7650").url());
        assert!(open.set_cookie().unwrap().starts_with("gpuheap-7650="));
    }
}
