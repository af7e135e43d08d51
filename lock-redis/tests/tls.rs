//! TLS: a server that can be trusted works, any other fails closed.

use crate::common::{held, request};
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::servers::tls;
use onelock_core::{Backend, ErrorKind, Release};
use onelock_redis::{RedisBackend, RedisConfig};

#[tokio::test]
async fn only_a_server_that_can_be_trusted_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let right = tls::authority(folder.path(), "right", "localhost").ok().unwrap();
    let other = tls::authority(folder.path(), "other", "localhost").ok().unwrap();
    let setup = Setup { tls: Some(right.clone()), ..Setup::default() };
    let server = RedisServer::start(setup).await.ok().unwrap();
    let config = |host: &str| {
        let mut config = RedisConfig::new(host, server.address().port());
        config.tls = true;
        config.tls_ca = Some(right.authority.clone());
        config
    };
    let backend = RedisBackend::connect(config("localhost")).await.unwrap();
    let ask = request("a", "x");
    held(backend.acquire(&ask).await.unwrap());
    assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::Released);
    assert_eq!(backend.info().scheme, "rediss");

    let mut untrusted = config("localhost");
    untrusted.tls_ca = Some(other.authority);
    let mut unknown = config("localhost");
    unknown.tls_ca = None;
    let mut plain = config("localhost");
    (plain.tls, plain.tls_ca) = (false, None);
    for refused in [config("127.0.0.1"), untrusted, unknown.clone(), plain] {
        let error = RedisBackend::connect(refused.clone()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied), "{refused:?}: {error}");
    }
    let mut missing = config("localhost");
    missing.tls_ca = Some(folder.path().join("nothing.pem"));
    assert_eq!(RedisBackend::connect(missing).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    unknown.tls_insecure = true;
    held(RedisBackend::connect(unknown).await.unwrap().acquire(&request("b", "x")).await.unwrap());
}
