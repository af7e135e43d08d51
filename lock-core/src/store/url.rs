//! Store URLs: `scheme://user:password@host:port,host:port/path?option=value`.
//!
//! Parsed here once for every store, because general URL parsers take neither several hosts nor keep passwords apart.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use super::options::{OptionSpec, Text};
use crate::error::{Error, ErrorKind, Result};

/// A text that is never printed. It is read by serde and never written.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret(#[serde(deserialize_with = "text")] String);

/// What a reader says of another type shows the value, such as a password of digits without quotation marks.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map_err(|_| D::Error::custom("a secret is a text, in quotation marks"))
}

impl Secret {
    /// Wraps `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: for the store's driver only.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// A host name or an address (IPv6 without brackets); or the path of a Unix socket, which starts with `/`.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Host {
    /// This host and port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Whether it is a Unix socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_socket() {
            f.write_str(&self.host)
        } else {
            f.write_str(&host_port(&self.host, Some(self.port)))
        }
    }
}

/// A parsed store URL. Its `Debug` and `Display` show neither the password nor the values of options.
///
/// ```
/// use onelock_core::StoreUrl;
///
/// let mut url: StoreUrl = "my://app:hunter2@a:1,b/shop?retries=3".parse()?;
/// assert_eq!((url.scheme.as_str(), url.path.as_str()), ("my", "/shop"));
/// assert_eq!(url.hosts_or(2).len(), 2); // `b` with port 2
/// assert_eq!(url.take::<u32>("retries")?, Some(3));
/// assert!(!url.to_string().contains("hunter2"));
/// # Ok::<(), onelock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    /// In lower case.
    pub scheme: String,
    /// Decoded.
    pub username: Option<String>,
    /// Decoded.
    pub password: Option<Secret>,
    /// Host names or addresses (IPv6 without brackets) and ports, in order; empty for a local store.
    pub hosts: Vec<(String, Option<u16>)>,
    /// Decoded, with its leading slash; empty when there is none.
    pub path: String,
    options: BTreeMap<String, Secret>,
}

impl StoreUrl {
    /// The host and port when there must be exactly one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when there is none or more than one.
    pub fn single_host(&self) -> Result<(&str, Option<u16>)> {
        match &self.hosts[..] {
            [(host, port)] => Ok((host, *port)),
            [] => Err(bad(format!("{self} names no host"))),
            _ => Err(bad(format!("{self} names several hosts; this store takes one"))),
        }
    }

    /// The hosts, those without a port with `port`.
    #[must_use]
    pub fn hosts_or(&self, port: u16) -> Vec<Host> {
        self.hosts.iter().map(|(host, given)| Host::new(host.clone(), given.unwrap_or(port))).collect()
    }

    /// The address without user, password and options.
    #[must_use]
    pub fn address(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|(h, p)| host_port(h, *p)).collect();
        format!("{}://{}{}", self.scheme, hosts.join(","), self.path)
    }

    /// Takes an option out and reads it as serde reads a `T`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when its value is not a `T`; the value itself is not shown.
    pub fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.options.remove(key) else { return Ok(None) };
        let read = T::deserialize(Text(value.reveal()));
        read.map(Some).map_err(|why| bad(format!("option `{key}` {why}")))
    }

    /// Takes an option out, under whichever spelling it was given.
    pub(crate) fn take_option(&mut self, spec: &OptionSpec) -> Result<Option<Secret>> {
        let names = std::iter::once(&spec.name).chain(spec.aliases);
        let mut given = names.filter_map(|name| self.options.remove(*name));
        let value = given.next();
        if given.next().is_some() {
            return Err(bad(format!("option `{}` is given twice", spec.name)));
        }
        Ok(value)
    }

    /// Sets an option, replacing what the URL said.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.options.insert(key.into(), Secret::new(value));
    }

    /// The names of the options that were given and not yet taken.
    pub fn option_names(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// Refuses options that nobody knows, naming those that exist.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for the first unknown option.
    pub fn check_options(&self, known: &[&[OptionSpec]]) -> Result<()> {
        let specs = || known.iter().flat_map(|part| part.iter());
        let names = || specs().map(|spec| spec.name);
        for given in self.options.keys() {
            if !specs().any(|spec| spec.is(given)) {
                let list = names().collect::<Vec<_>>().join(", ");
                let given: String = given.chars().take(40).collect();
                let meant = nearest(&given, names())
                    .map_or_else(String::new, |name| format!("did you mean `{name}`? "));
                return Err(bad(format!("{} has no option `{given}`; {meant}it has: {list}", self.scheme)));
            }
        }
        Ok(())
    }
}

/// The name that `given` is a slip of the keyboard away from.
fn nearest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|name| (strsim::osa_distance(given, name), name)).min()?;
    (near.0 <= (near.1.len() / 3).clamp(1, 3)).then_some(near.1)
}

/// Writes a host and a port the way a URL does.
#[must_use]
pub fn host_port(host: &str, port: Option<u16>) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    port.map_or(host.clone(), |port| format!("{host}:{port}"))
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // No message repeats the text: it may hold a password.
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            bad("a store URL looks like scheme://host:port; that of a file is sqlite:///folder/file".into())
        })?;
        let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !scheme_ok {
            return Err(bad("the scheme of the store URL is malformed".into()));
        }
        if rest.chars().any(char::is_control) {
            return Err(bad("the store URL has a control character".into()));
        }
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // A password with a bare `/`, `?` or `#` ends the authority early: the host would be another, and the rest of the
        // password a part that is shown. Where the `@` is meant to be elsewhere, it can be written %40.
        let cut = !authority.is_empty() && rest.contains('@');
        if cut || rest.contains('#') {
            let text = "the store URL has a `#`, or an `@` after the host: in a password, a path or an option write \
                        # as %23, @ as %40, / as %2F and ? as %3F";
            return Err(bad(text.into()));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let (username, password) = match user.map(|u| u.split_once(':').unwrap_or((u, ""))) {
            None => (None, None),
            Some((name, pass)) => (non_empty(decoded(name)?), non_empty(decoded(pass)?).map(Secret::new)),
        };
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            username,
            password,
            hosts: parse_hosts(hosts)?,
            path: decoded(path)?,
            options: parse_options(query)?,
        })
    }
}

fn parse_hosts(text: &str) -> Result<Vec<(String, Option<u16>)>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_host).collect()
}

fn parse_host(text: &str) -> Result<(String, Option<u16>)> {
    let malformed = || bad("a host of the store URL is malformed".into());
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(malformed)?;
        let address: std::net::Ipv6Addr = host.parse().map_err(|_| malformed())?;
        let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(malformed)?) };
        (address.to_string(), port)
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(h, p)| (h, Some(p)));
        (decoded(host)?, port)
    };
    let host_ok = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?#[]".contains(c));
    if !host_ok {
        return Err(malformed());
    }
    let port = match port {
        None => None,
        Some(port) => match port.parse::<u16>() {
            Ok(number) if number > 0 && port.bytes().all(|b| b.is_ascii_digit()) => Some(number),
            _ => return Err(bad("a port of the store URL is not a number from 1 to 65535".into())),
        },
    };
    Ok((host, port))
}

fn parse_options(query: &str) -> Result<BTreeMap<String, Secret>> {
    let mut options = BTreeMap::new();
    for part in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or(("", part));
        let (key, value) = (decoded(key)?, decoded(value)?);
        // Behind a bare `&` in a value comes the rest of that: of a password, or of a quorum's members. No message shows it.
        if key.is_empty() || key.contains(|c: char| !c.is_ascii_alphanumeric() && !"_-".contains(c)) {
            return Err(
                bad("an option of the store URL is not name=value; in a value write & as %26".into()),
            );
        }
        if options.insert(key.clone(), Secret::new(value)).is_some() {
            return Err(bad(format!("option `{key}` is given twice")));
        }
    }
    Ok(options)
}

fn decoded(text: &str) -> Result<String> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| bad("a part of the store URL is not UTF-8 when decoded".into()))?;
    if text.chars().any(char::is_control) {
        return Err(bad("the store URL has a control character".into()));
    }
    Ok(text.into_owned())
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn bad(text: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl")
            .field("address", &self.address())
            .field("username", &self.username.as_ref().map(|_| "***"))
            .field("options", &self.options)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url_is_read() {
        let mut url: StoreUrl = "Redis://us%40er:p%3Aw@h1:7,[::1]:8,h3/0?ttl=15s&x=%20".parse().unwrap();
        assert_eq!(url.scheme, "redis");
        assert_eq!(url.username.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_ref().unwrap().reveal(), "p:w");
        assert_eq!(url.hosts, [("h1".into(), Some(7)), ("::1".into(), Some(8)), ("h3".into(), None)]);
        assert_eq!(url.path, "/0");
        assert_eq!(url.take::<String>("ttl").unwrap().as_deref(), Some("15s"));
        assert_eq!(url.take::<String>("x").unwrap().as_deref(), Some(" "));
        assert_eq!(url.address(), "redis://h1:7,[::1]:8,h3/0");
    }

    #[test]
    fn nothing_printed_holds_a_secret() {
        let url: StoreUrl = "redis://name:hunter2@h/0?password=hunter2".parse().unwrap();
        assert!(!format!("{url} {url:?} {}", url.address()).contains("hunter2"));
        let cut = ["r://u:1/hunter2@h:1/0", "r://u:1?hunter2@h", "r://u:1#hunter2@h", "r://u:1@2/hunter2@h"];
        let others =
            ["redis:hunter2", "re dis://hunter2@h", "r://u:hunter2@h:port", "r://u:hunter2@h?a=1&a=2"];
        let behind =
            ["q://?members=r://:a&hunter2@h|r://i", "r://h?password=a&hunter2/", "r://h?password=a&hunter2"];
        for bad in cut.into_iter().chain(others).chain(behind) {
            let error = bad.parse::<StoreUrl>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_would_be_cut_off_is_refused_with_a_hint() {
        for bad in
            ["x:///var/a#1.db", "x://h?note=a#b", "x://h/0#", "x://u:1/2@h", "x://u:1?x=2@h", "x://h/a@b"]
        {
            let text = bad.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(text.contains("%23") && text.contains("%2F"), "{bad}: {text}");
        }
        let mut url: StoreUrl = "x://u:p%2F%3F%23%40@h/a%23b%40?note=c%40d".parse().unwrap();
        assert_eq!(url.password.as_ref().unwrap().reveal(), "p/?#@");
        assert_eq!((url.hosts.len(), url.path.as_str()), (1, "/a#b@"));
        assert_eq!(url.take::<String>("note").unwrap().as_deref(), Some("c@d"));
        assert_eq!("x:///home/me@work/locks.db".parse::<StoreUrl>().unwrap().path, "/home/me@work/locks.db");
    }

    #[test]
    fn malformed_urls_are_typed_errors() {
        for bad in [
            "",
            "x",
            "://",
            "1x://h",
            "x://h:0",
            "x://h:65536",
            "x://h:+1",
            "x://[::1",
            "x://[zz]:1",
            "x://a,,b",
            "x://h\n",
            "x://%FF@h",
            "x://h?%00=1",
            "x://h?=1",
            "x://a b/",
        ] {
            assert_eq!(bad.parse::<StoreUrl>().unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
        }
    }

    #[test]
    fn a_slip_of_the_keyboard_finds_what_was_meant() {
        let known = ["note", "request_timeout", "ttl"];
        for (given, meant) in [
            ("tlt", Some("ttl")),
            ("tl", Some("ttl")),
            ("ttll", Some("ttl")),
            ("requset_timout", Some("request_timeout")),
            ("prefix", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known.into_iter()), meant, "{given:?}");
        }
    }

    #[test]
    fn unknown_options_name_the_known() {
        const KNOWN: &[OptionSpec] = &[OptionSpec::new("ttl", "30s", "")];
        let url: StoreUrl = "x://h?tll=1".parse().unwrap();
        let text = url.check_options(&[KNOWN]).unwrap_err().to_string();
        assert!(text.contains("x has no option `tll`; did you mean `ttl`? it has: ttl"), "{text}");
        let far: StoreUrl = "x://h?password=1".parse().unwrap();
        let text = far.check_options(&[KNOWN]).unwrap_err().to_string();
        assert!(text.contains("`password`; it has: ttl"), "{text}");
    }
}
