//! Tokens of users that are not good any more while locks are held and waited for.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::server::{Admin as _, Member};
use crate::support::waits;
use etcd_client::{Client, ConnectOptions};
use onelock_conformance::ctx::{PATIENCE, exclusive, held, name, number, renewal, ticket, waiting};
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::harness::open_by;
use onelock_conformance::servers::{Place, data_folder, tls};
use onelock_conformance::{Stop, Verdict};
use onelock_core::{Backend, Credentials, ErrorKind, FencingToken, Renewed, Request, Secret, Wake};
use onelock_etcd::{DRIVER, EtcdBackend, EtcdConfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

const PASSWORD: &str = "apps-never-printed";

/// A server whose tokens are JWTs, each good for one revision of users and roles.
async fn with_jwt() -> Verdict<(Member, TempDir)> {
    let folder = data_folder()?;
    let key = folder.path().join("jwt.key");
    std::fs::write(&key, "a secret of this test")?;
    let tokens = format!("--auth-token=jwt,sign-method=HS256,ttl=10m,priv-key={}", key.display());
    let server = Member::with(Place::Memory, None, &[tokens]).await?;
    server.with_a_user(PASSWORD).await?;
    Ok((server, folder))
}

/// Whatever changes among users and roles: what is held is renewed, who waits is told, and what was not watched yet is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_users_and_roles_lose_no_lock() -> Verdict {
    let (server, _folder) = with_jwt().await?;
    let url = format!("etcd://app:{PASSWORD}@{}", server.address());
    let (a, b) = (open_by(&DRIVER, &url).await?, open_by(&DRIVER, &url).await?);
    let (old, new) = (name("before")?, name("after")?);
    let first = exclusive(&old)?;
    let token = held(&a, &first).await?.token;
    let second = exclusive(&old)?;
    let place = waiting(&b, &second).await?;
    let early = waits(&b, &ticket(&second, place.token));

    // A client of its own for each change: the admin's token is old after it, too.
    server.admin().await?.auth_client().role_add("another").await?;
    assert!(matches!(a.renew(&[renewal(&first, token)]).await.remove(0)?, Renewed::Held(_)));
    assert!(matches!(b.renew(&[renewal(&second, place.token)]).await.remove(0)?, Renewed::Waiting(_)));

    // The stream of watches stands with the token it was opened with.
    let third = exclusive(&new)?;
    let held_new = held(&a, &third).await?.token;
    server.admin().await?.auth_client().user_add("somebody", PASSWORD, None).await?;
    let fourth = exclusive(&new)?;
    let next = waiting(&b, &fourth).await?;
    let late = waits(&b, &ticket(&fourth, next.token));
    a.release(&ticket(&third, held_new)).await?;
    assert_eq!(timeout(PATIENCE, late).await???, Wake::Held(number(next)?));
    a.release(&ticket(&first, token)).await?;
    assert_eq!(timeout(PATIENCE, early).await???, Wake::Held(place.token.unwrap()));
    Ok(())
}

/// The password of the user itself is changed: with a file that has the new one nothing is lost, without one the error says
/// what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_password_is_read_again() -> Verdict {
    for jwt in [true, false] {
        let (server, folder) = if jwt {
            with_jwt().await?
        } else {
            let server = Member::single(None).await?;
            server.with_a_user(PASSWORD).await?;
            (server, data_folder()?)
        };
        let file = folder.path().join("password");
        std::fs::write(&file, format!("{PASSWORD}\n"))?;
        let url = format!("etcd://app@{}?password_file={}", server.address(), file.display());
        let by_file = open_by(&DRIVER, &url).await?;
        let by_url = open_by(&DRIVER, &format!("etcd://app:{PASSWORD}@{}", server.address())).await?;
        let (one, two) = (exclusive(&name("one")?)?, exclusive(&name("two")?)?);
        let (kept, lost) = (held(&by_file, &one).await?.token, held(&by_url, &two).await?.token);
        server.admin().await?.auth_client().user_change_password("app", "another-password").await?;
        // While it is exchanged there is none.
        std::fs::remove_file(&file)?;
        let missing = by_file.renew(&[renewal(&one, kept)]).await.remove(0).unwrap_err();
        assert!(missing.is_retryable() && !missing.is_unclear(), "{missing}");
        std::fs::write(&file, "another-password\n")?;
        assert!(matches!(by_file.renew(&[renewal(&one, kept)]).await.remove(0)?, Renewed::Held(_)), "{jwt}");
        let error = by_url.renew(&[renewal(&two, lost)]).await.remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains(PASSWORD), "{error}");
    }
    Ok(())
}

/// What a renewal says in the end, where a failed one is worth another.
async fn renewed(backend: &dyn Backend, asked: &Request, token: FencingToken) -> Verdict<Renewed> {
    let settled = async {
        loop {
            match backend.renew(&[renewal(asked, token)]).await.remove(0) {
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => return answer,
            }
        }
    };
    Ok(timeout(PATIENCE, settled).await??)
}

/// An administrator switches the asking for passwords off and on again: who has one goes on, on another member too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authentication_that_is_switched_off_and_on_loses_no_lock() -> Verdict {
    let server = Member::single(None).await?;
    server.with_a_user(PASSWORD).await?;
    let links = [Link::new(), Link::new()];
    let (one, two) =
        (Proxy::start(server.address(), &links[0]).await?, Proxy::start(server.address(), &links[1]).await?);
    let backend =
        open_by(&DRIVER, &format!("etcd://app:{PASSWORD}@{},{}", one.address(), two.address())).await?;
    let asked = exclusive(&name("kept")?)?;
    let token = held(&backend, &asked).await?.token;
    server.admin().await?.auth_client().auth_disable().await?;
    assert!(matches!(renewed(&*backend, &asked, token).await?, Renewed::Held(_)));
    // It logs in at the one that it has not used yet.
    for link in &links {
        link.set(Fault::Reset);
        assert!(matches!(renewed(&*backend, &asked, token).await?, Renewed::Held(_)));
        link.heal();
    }
    let anybody = Client::connect([server.address().to_string()], None).await?;
    anybody.auth_client().auth_enable().await?;
    assert!(matches!(renewed(&*backend, &asked, token).await?, Renewed::Held(_)));
    held(&backend, &exclusive(&name("next")?)?).await?;
    Ok(())
}

/// The same for a client of the application's, which keeps its token in all its clones, and may log in by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authentication_that_is_switched_off_costs_no_lock_of_a_given_client() -> Verdict {
    for refreshes in [false, true] {
        let server = Member::single(None).await?;
        server.with_a_user(PASSWORD).await?;
        let options = ConnectOptions::new().with_user("app", PASSWORD).with_auto_token_refresh(refreshes);
        let client = Client::connect([server.address().to_string()], Some(options)).await?;
        let mut config = EtcdConfig::of_client(client);
        config.credentials = Some(Credentials::new(async || {
            Ok::<_, std::io::Error>(("app".to_owned(), Secret::new(PASSWORD)))
        }));
        let backend: Arc<dyn Backend> = Arc::new(EtcdBackend::connect(config).await?);
        let asked = exclusive(&name("kept")?)?;
        let token = held(&backend, &asked).await?.token;
        server.admin().await?.auth_client().auth_disable().await?;
        assert!(matches!(renewed(&*backend, &asked, token).await?, Renewed::Held(_)), "off, {refreshes}");
        let anybody = Client::connect([server.address().to_string()], None).await?;
        anybody.auth_client().auth_enable().await?;
        assert!(
            matches!(renewed(&*backend, &asked, token).await?, Renewed::Held(_)),
            "on again, {refreshes}"
        );
    }
    Ok(())
}

/// A callback gives the new password at the next login; a client of the application's is connected as.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_and_clients_of_the_applications_are_used() -> Verdict {
    let (server, _folder) = with_jwt().await?;
    let secret = Arc::new(Mutex::new(PASSWORD));
    let source = Arc::clone(&secret);
    let credentials = Credentials::new(move || {
        let password = *source.lock().unwrap_or_else(PoisonError::into_inner);
        async move { Ok::<_, std::io::Error>(("app".to_owned(), Secret::new(password))) }
    });
    let mut by_callback = EtcdConfig::new([("127.0.0.1", server.port())]);
    by_callback.credentials = Some(credentials.clone());
    let options = ConnectOptions::new().with_user("app", PASSWORD);
    let client = Client::connect([format!("http://{}", server.address())], Some(options)).await?;
    let mut by_client = EtcdConfig::of_client(client);
    by_client.credentials = Some(credentials);
    assert!(!format!("{by_client:?}").contains(PASSWORD), "{by_client:?}");
    let a: Arc<dyn Backend> = Arc::new(EtcdBackend::connect(by_callback).await?);
    let b: Arc<dyn Backend> = Arc::new(EtcdBackend::connect(by_client).await?);
    let (one, two) = (exclusive(&name("n")?)?, exclusive(&name("n")?)?);
    let first = held(&a, &one).await?.token;
    let place = waiting(&b, &two).await?;
    server.admin().await?.auth_client().user_change_password("app", "another-password").await?;
    *secret.lock().unwrap_or_else(PoisonError::into_inner) = "another-password";
    assert!(matches!(a.renew(&[renewal(&one, first)]).await.remove(0)?, Renewed::Held(_)));
    assert!(matches!(b.renew(&[renewal(&two, place.token)]).await.remove(0)?, Renewed::Waiting(_)));
    a.release(&ticket(&one, first)).await?;
    let woken = timeout(PATIENCE, b.wait(&ticket(&two, place.token))).await??;
    assert_eq!(woken, Wake::Held(number(place)?));
    Ok(())
}

/// A client over TLS installs no provider of cryptography for the whole process: that is the application's to choose.
#[tokio::test]
async fn no_provider_is_installed() -> Verdict {
    let folder = data_folder()?;
    let files = onelock_conformance::servers::tls::authority(folder.path(), "server", "localhost")?;
    let server = Member::single(Some(&files)).await?;
    let url = format!("etcds://localhost:{}?tls_ca={}", server.port(), files.authority.display());
    let backend: Arc<dyn Backend> = open_by(&DRIVER, &url).await?;
    held(&backend, &exclusive(&name("secure")?)?).await?;
    assert!(rustls::crypto::CryptoProvider::get_default().is_none(), "a provider was installed");
    Ok(())
}

/// Makes an authority of clients (`clients`), and certificates of these users by it, each with its key in one file.
fn certify(folder: &Path, users: &[&str]) -> Verdict {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(folder.join("clients"), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    for user in users {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::new(Vec::new())?);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, *user);
        std::fs::write(folder.join(user), params.signed_by(&key, &issuer)?.pem() + &key.serialize_pem())?;
    }
    Ok(())
}

/// Certificates are exchanged before they end: who connects again, as when a server was restarted, shows the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_certificate_is_read_again() -> Verdict {
    let folder = data_folder()?;
    let files = tls::authority(folder.path(), "server", "localhost")?;
    certify(folder.path(), &["app"])?;
    let trusted = format!("--trusted-ca-file={}", folder.path().join("clients").display());
    let server =
        Member::with(Place::Memory, Some(&files), &["--client-cert-auth".to_owned(), trusted]).await?;
    let app = folder.path().join("app").display().to_string();
    let tls = format!("tls_ca={}&tls_cert={app}&tls_key={app}", files.authority.display());
    let backend = open_by(&DRIVER, &format!("etcds://localhost:{}?{tls}", server.port())).await?;
    let asked = exclusive(&name("kept")?)?;
    let token = held(&backend, &asked).await?.token;
    certify(folder.path(), &["app"])?;
    tls::authority(folder.path(), "server", "localhost")?;
    server.restart().await?;
    let renewed = async {
        loop {
            match backend.renew(&[renewal(&asked, token)]).await.remove(0) {
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => return answer,
            }
        }
    };
    assert!(matches!(timeout(PATIENCE, renewed).await??, Renewed::Held(_)));
    Ok(())
}

/// A user who is known by a certificate has no token to renew; a request of his that is under way while users or roles change is
/// made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_users_and_roles_refuse_nobody_with_a_certificate() -> Verdict {
    let folder = data_folder()?;
    let files = tls::authority(folder.path(), "server", "localhost")?;
    let file = |name: &str| folder.path().join(name);
    certify(folder.path(), &["root", "app"])?;
    let trusted = format!("--trusted-ca-file={}", file("clients").display());
    let asks = ["--client-cert-auth".to_owned(), trusted];
    let server = Member::with(Place::Memory, Some(&files), &asks).await?;
    let etcdctl = async |words: &str| {
        let (authority, root) = (files.authority.display(), file("root").display().to_string());
        let at = format!("--endpoints=https://localhost:{}", server.port());
        let mut command = Command::new("etcdctl");
        command.args([
            at,
            format!("--cacert={authority}"),
            format!("--cert={root}"),
            format!("--key={root}"),
        ]);
        let done = command.args(words.split(' ')).env("ETCDCTL_API", "3").output().await?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Verdict::Ok(()) } else { Err(Stop::failed(format!("{words}: {said}"))) }
    };
    for user in ["root", "app"] {
        etcdctl(&format!("user add {user}:{PASSWORD}")).await?;
        etcdctl(&format!("role add {user}")).await?;
        etcdctl(&format!("user grant-role {user} {user}")).await?;
    }
    etcdctl("role grant-permission app --prefix=true readwrite onelock/").await?;
    etcdctl("auth enable").await?;
    let app = file("app").display().to_string();
    let tls = format!("tls_ca={}&tls_cert={app}&tls_key={app}", files.authority.display());
    let backend = open_by(&DRIVER, &format!("etcds://localhost:{}?{tls}", server.port())).await?;
    let (stop, mut work) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for task in 0..32 {
        let (backend, stop, name) = (Arc::clone(&backend), Arc::clone(&stop), name(&format!("n-{task}"))?);
        work.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let asked = exclusive(&name)?;
                // A busy machine may not answer in time, and a request may meet two changes, one after the other; that is no refusal.
                for error in
                    [backend.acquire(&asked).await.err(), backend.release(&asked.ticket()).await.err()]
                {
                    error.filter(|error| !error.is_retryable()).map_or(Ok(()), Err)?;
                }
            }
            Verdict::Ok(())
        });
    }
    for role in 0..30 {
        etcdctl(&format!("role add another-{role}")).await?;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = work.join_next().await {
        ended??;
    }
    Ok(())
}
