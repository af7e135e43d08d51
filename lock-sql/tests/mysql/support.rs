//! What the tests share.

use std::net::Ipv4Addr;
use std::time::Duration;

use onelock_core::store::Checked;
use onelock_core::{Backend, Grant, HolderId, LockName, Mode, Place, Request, Standing, Ticket};
use onelock_sql::{MySqlBackend, MySqlConfig};

use crate::mysql_server::MariaDb;
use crate::mysql_server::counter::Counter;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub(crate) fn config(url: &str) -> MySqlConfig {
    MySqlConfig::from_url(url.parse().unwrap()).unwrap()
}

pub(crate) async fn connect(url: &str) -> Checked<MySqlBackend> {
    MySqlBackend::connect(config(url)).await.unwrap()
}

/// A client whose requests are counted, with these further options.
pub(crate) async fn counted(server: &MariaDb, options: &str) -> (Counter, Checked<MySqlBackend>) {
    let counter = Counter::start((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap();
    // What is encrypted cannot be counted.
    let url = format!("mysql://root@127.0.0.1:{}/locks?tls=off{options}", counter.port());
    (counter, MySqlBackend::connect(config(&url)).await.unwrap())
}

pub(crate) fn request(on: &str, mode: Mode) -> Request {
    Request::new(name(on), HolderId::random().unwrap(), mode, LONG)
}

pub(crate) async fn held(store: &dyn Backend, request: &Request) -> Grant {
    match store.acquire(request).await.unwrap() {
        Standing::Held(grant) => grant,
        other => panic!("must hold: {other:?}"),
    }
}

pub(crate) async fn waiting(store: &dyn Backend, request: &Request) -> Place {
    match store.acquire(request).await.unwrap() {
        Standing::Waiting(place) => place,
        other => panic!("must wait: {other:?}"),
    }
}

pub(crate) fn ticket(request: &Request, token: onelock_core::FencingToken) -> Ticket {
    request.ticket().token(token)
}
