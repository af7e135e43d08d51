//! Which kind of server answers at an address that does not speak its store's protocol: for the text of the error.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::Duration;

use tokio::time::timeout;

use crate::error::{Error, ErrorKind};
use crate::url::StoreUrl;

/// How long a server may take to speak first, and to answer a question. They delay an error, so they are short.
const FIRST: Duration = Duration::from_millis(300);
const ANSWER: Duration = Duration::from_secs(1);

/// How long all of it may take: the name of a server is looked up first, and that has no limit.
const ALL: Duration = Duration::from_secs(3);

/// What a server is called, and how the schemes of its URLs begin.
type Kind = (&'static str, &'static [&'static str]);

/// The kind of server that gives such an answer.
type Judge = fn(&[u8]) -> Option<Kind>;

/// What is sent, and how each kind of server answers.
const QUESTIONS: [(&[u8], Judge); 5] = [
    (b"", |said| {
        let greets = said.len() > 4 && said[3] == 0 && matches!(said[4], 10 | 255);
        greets.then_some(("MySQL or MariaDB", &["mysql", "mariadb"]))
    }),
    (b"PING\r\n", |said| {
        let answers: [&[u8]; 3] = [b"+PONG", b"-NOAUTH", b"-DENIED"];
        answers.iter().any(|text| said.starts_with(text)).then_some(("Redis", &["redis"]))
    }),
    // A request for TLS, which is answered by one letter.
    (b"\0\0\0\x08\x04\xd2\x16\x2f", |said| {
        matches!(said, b"N" | b"S").then_some(("PostgreSQL", &["postgres"]))
    }),
    (b"srvr", |said| {
        let answers: [&[u8]; 2] = [b"Zookeeper version", b"srvr is not"];
        answers.iter().any(|text| said.starts_with(text)).then_some(("ZooKeeper", &["zk", "zookeeper"]))
    }),
    (b"GET /version HTTP/1.0\r\n\r\n", |said| {
        let etcd = said.windows(10).any(|part| part == b"etcdserver");
        let kind: Kind = if etcd { ("etcd", &["etcd"]) } else { ("a web server", &[]) };
        said.starts_with(b"HTTP/").then_some(kind)
    }),
];

/// Adds to an error of opening `url` what the server there looks like, where that is another kind than the URL names.
pub(crate) async fn explained(
    error: Error,
    url: &StoreUrl,
    found: impl FnOnce(&str, u16) -> Option<Kind> + Send + 'static,
) -> Error {
    if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Protocol) {
        return error;
    }
    let Some((host, Some(port))) = url.hosts.first().cloned() else { return error };
    let asking = timeout(ALL, tokio::task::spawn_blocking(move || found(&host, port)));
    let Ok(Ok(Some((name, schemes)))) = asking.await else { return error };
    match schemes.iter().find_map(|own| url.scheme.strip_prefix(own)) {
        None => error.noting(&format!("what answers there looks like {name}")),
        // It was asked without TLS, which a scheme such as `rediss` demands.
        Some(rest) if rest.starts_with('s') => {
            error.noting(&format!("what answers there looks like {name} without TLS"))
        }
        Some(_) => error,
    }
}

/// The kind of server that answers at this address.
pub(crate) fn found(host: &str, port: u16) -> Option<Kind> {
    let (greeting, judge) = QUESTIONS[0];
    // A server that speaks first is asked no more: it may count connections that break off.
    if let Some(said) = ask(host, port, greeting, FIRST) {
        return judge(&said);
    }
    let (tell, answers) = mpsc::channel();
    for (question, judge) in QUESTIONS {
        let (host, tell) = (host.to_owned(), tell.clone());
        let asking = move || {
            if let Some(kind) = ask(&host, port, question, ANSWER).and_then(|said| judge(&said)) {
                // Nobody listens when another question has found it.
                let _ = tell.send(kind);
            }
        };
        // Where there can be no thread it is not asked.
        let _ = std::thread::Builder::new().spawn(asking);
    }
    drop(tell);
    answers.recv().ok()
}

/// What the server says to this, where it says something in time.
fn ask(host: &str, port: u16, question: &[u8], limit: Duration) -> Option<Vec<u8>> {
    let address = (host, port).to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.write_all(question).ok()?;
    let mut said = vec![0; 4096];
    let length = stream.read(&mut said).ok()?;
    said.truncate(length);
    (length > 0).then_some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_waits_for_no_name_server() {
        let (answers, asked) = mpsc::channel::<()>();
        let looks = move |_: &str, _| asked.recv().ok().and(None);
        let (error, url) = (Error::new(ErrorKind::Timeout, "away"), "x://nowhere:1".parse().unwrap());
        let explained = explained(error, &url, looks);
        let explained = tokio::time::timeout(Duration::from_secs(20), explained).await;
        drop(answers);
        assert_eq!(explained.expect("it waits").kind(), ErrorKind::Timeout);
    }
}
