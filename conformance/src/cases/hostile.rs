//! Bad input: names, leases, settings, URLs; and secrets.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::client::Locks;
use onelock_core::{Backend, ErrorKind, HolderId, LockName, Page, Release, Settings, Standing};

use crate::case::{Need, table};
use crate::ctx::{Ctx, LONG, answered, exclusive, held, leased, listed, refused, ticket, trying};
use crate::rng::Rng;
use crate::verdict::{Stop, Verdict};
use crate::{ensure, ensure_eq, expect};

table! {
    hostile_names: [14], [Need::WholeNames, Need::Thousands], 300;
    name_pairs_never_meet: [14], [], 60;
    hostile_leases: [5], [], 30;
    hostile_holders: [2, 8], [], 30;
    no_secret_is_shown: [], [Need::Password], 30;
    tls_fails_closed: [], [Need::Tls], 60;
}

/// Ten thousand generated names: valid ones each are a lock of their own, invalid ones a typed error before any I/O.
async fn hostile_names(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let mut rng = ctx.rng();
    let (mut seen, mut refused) = (HashSet::new(), 0);
    let mut batch = Vec::new();
    // All are held until the last has been asked for again.
    let lease = backend.capabilities().max_lease.min(Duration::from_secs(3600));
    for _ in 0..ctx.volume(10_000) {
        let text = hostile_name(&mut rng);
        let name = match LockName::new(&text) {
            Ok(name) => name,
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::InvalidName, "{text:?}");
                refused += 1;
                continue;
            }
        };
        if seen.insert(name.clone()) {
            batch.push(leased(exclusive(&name)?, lease));
        }
    }
    ensure!(refused > 100 && seen.len() > 1000, "{refused} refused, {} valid: a poor choice", seen.len());
    // All are held at once: none blocks another.
    let mut tokens = HashSet::new();
    for request in &batch {
        let grant = held(&backend, &trying(request.clone())).await?;
        tokens.insert((request.name.clone(), grant.token));
        ensure_eq!(grant.lease >= lease, true, "the lease of {:?}", request.name);
    }
    for request in &batch {
        let again = backend.acquire(&trying(exclusive(&request.name)?)).await?;
        expect!(again, Standing::Busy(_) => (), "the same name again: {:?}", request.name);
    }
    if backend.capabilities().list {
        let names = listed(&backend, "", Page::MAX).await?;
        let listed: HashSet<_> = names.into_iter().map(|listed| listed.name).collect();
        ensure_eq!(listed.len(), batch.len(), "names listed");
        ensure!(
            batch.iter().all(|request| listed.contains(&request.name)),
            "a name is listed in another spelling"
        );
    }
    for request in &batch {
        backend.release(&request.ticket()).await?;
    }
    ctx.nothing_left(&[]).await
}

fn hostile_name(rng: &mut Rng) -> String {
    /// Characters that mean something to some store, or look like nothing or like others.
    const CHARACTERS: &str = "abA0/.{}:%*?'\"\\~#&=+,;|<>@ \t\n\0\u{7f}\u{85}\
                              ü😀İß\u{202e}\u{200b}\u{feff}\u{10ffff}";
    const WORDS: &str = "lock // .. ... /../ {} {a} :: %2F %00 [a-z] $1 $(id) `id` u\u{308} NULL null -1 SS \
                         e: :n onelock _c_ lock-0000000001";
    const PHRASES: [&str; 3] = ["'; DROP TABLE onelock_line; --", "  ", "\r\n"];
    let characters = CHARACTERS.split("").filter(|piece| !piece.is_empty());
    let pieces: Vec<_> = characters.chain(WORDS.split(' ')).chain(PHRASES).collect();
    match rng.below(20) {
        0 => String::new(),
        1 => pieces[rng.index(pieces.len())].repeat(rng.index(300)),
        2 => (0..rng.below(40))
            .filter_map(|_| char::from_u32(u32::try_from(rng.below(0x11_0000)).ok()?))
            .collect(),
        _ => (0..=rng.below(6)).map(|_| pieces[rng.index(pieces.len())]).collect(),
    }
}

/// Names that a careless store would mix up are different locks, at the client's level too.
async fn name_pairs_never_meet(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let pairs = [
        ("a", "a/b"),
        ("a", "a/"),
        ("a", "A"),
        ("a", "a "),
        ("a", " a"),
        ("a/b", "a%2Fb"),
        ("a", "%61"),
        ("é", "e\u{301}"),
        ("ss", "ß"),
        ("x{1}", "y{1}"),
        ("1", "01"),
        ("a:b", "a::b"),
        ("a", "a\u{200b}"),
        ("..", "."),
    ];
    for (one, two) in pairs {
        let first = locks.mutex(one)?.try_acquire().await?;
        let second = locks.mutex(two)?.try_acquire().await?;
        ensure!(first.is_some() && second.is_some(), "{one:?} and {two:?} block each other");
        ensure!(locks.mutex(one)?.try_acquire().await?.is_none(), "{one:?} twice");
        for guard in [first, second].into_iter().flatten() {
            guard.release().await?;
        }
    }
    match ctx.store().connect_beside().await? {
        Some(beside) => namespaces_never_meet(locks.backend(), &beside).await,
        None => Ok(()),
    }
}

/// What is in one namespace neither blocks, is seen in nor is ended from another one of the same server.
async fn namespaces_never_meet(here: &Arc<dyn Backend>, beside: &Arc<dyn Backend>) -> Verdict {
    let (name, alone) = (crate::ctx::name("a")?, crate::ctx::name("b")?);
    let (one, two, other) =
        (trying(exclusive(&name)?), trying(exclusive(&alone)?), trying(exclusive(&name)?));
    held(here, &one).await?;
    held(here, &two).await?;
    let grant = held(beside, &other).await?;
    let holders = beside.inspect(&name).await?.holders;
    let tokens: Vec<_> = holders.iter().map(|holder| holder.token).collect();
    ensure_eq!(tokens, [grant.token], "who holds beside");
    if beside.capabilities().list {
        let names: Vec<_> = listed(beside, "", Page::MAX).await?.into_iter().map(|seen| seen.name).collect();
        ensure_eq!(names, [name], "the names beside");
    }
    ensure_eq!(beside.release(&two.ticket()).await?, Release::NotHeld, "a release from beside");
    for (backend, request) in [(here, one), (here, two), (beside, other)] {
        ensure_eq!(backend.release(&request.ticket()).await?, Release::Released, "{:?}", request.name);
    }
    Ok(())
}

/// Leases out of range are typed errors before any I/O, in every place that takes one; settings and URLs too.
async fn hostile_leases(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let lock = locks.mutex("lease")?;
    let ms = Duration::from_millis;
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(500),
        ms(9),
        ms(i64::MAX as u64),
        ms(i64::MAX as u64 + 1),
        ms(u64::MAX),
        Duration::from_secs(i64::MAX as u64),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
        Duration::from_secs(24 * 3600) + ms(1),
    ];
    let invalid = ErrorKind::InvalidLease;
    for lease in bad {
        refused(lock.clone().ttl(lease), invalid, &format!("a ttl of {lease:?}"))?;
        refused(lock.clone().waiter_lease(lease), invalid, &format!("a waiter lease of {lease:?}"))?;
        let mut settings = Settings::default();
        settings.ttl = lease;
        let built = Locks::builder(ctx.backend().await?).settings(settings).build();
        refused(built, invalid, &format!("a client with a ttl of {lease:?}"))?;
    }
    refused(lock.clone().max_hold(Duration::ZERO), invalid, "no hold at all")?;
    refused(locks.semaphore("lease", 0), ErrorKind::InvalidConfig, "no permits")?;
    if ctx.harness().capabilities().delay {
        refused(lock.clone().lock_delay(Duration::MAX), invalid, "an endless delay")?;
    }
    for note in ["a\nb", "\0", &"x".repeat(513)] {
        ensure!(lock.clone().note(note).is_err(), "a note of {} bytes {note:?}", note.len());
    }
    // Each client that was built for the settings connects; no request may be for a lock.
    let line = locks.inspect("lease").await?;
    ensure!(line.holders.is_empty(), "something was acquired: {line:?}");
    let short = lock.ttl(ms(10))?;
    // A busy machine outlasts so short a lease again and again before the grant is read.
    let shortest = answered(|| short.acquire()).await?;
    ensure!(shortest.ttl() >= locks.capabilities().min_lease, "a ttl of {:?}", shortest.ttl());
    Ok(())
}

/// Holder ids of all shapes are kept apart.
async fn hostile_holders(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let ids = [
        0,
        1,
        u128::MAX,
        u128::MAX - 1,
        1 << 127,
        10,
        0x0a0d_0a0d,
        0x3a3a_3a3a,
        u128::from_be_bytes(*b"'; DROP TABLE --"),
    ];
    let name = crate::ctx::name("ids")?;
    for (i, id) in ids.into_iter().enumerate() {
        let mut request = exclusive(&name)?;
        request.holder = HolderId::from_u128(id);
        let grant = held(&backend, &request).await?;
        for (j, other) in ids.into_iter().enumerate().filter(|(j, _)| *j != i) {
            let mut foreign = ticket(&request, grant.token);
            foreign.holder = HolderId::from_u128(other);
            ensure_eq!(backend.release(&foreign).await?, Release::NotHeld, "id {j} releases id {i}");
        }
        let released = backend.release(&ticket(&request, grant.token)).await?;
        ensure_eq!(released, Release::Released, "id {i}");
    }
    Ok(())
}

/// No password is in anything that can be printed: clients, locks, guards, errors, snapshots.
async fn no_secret_is_shown(ctx: &Ctx) -> Verdict {
    let given = ctx.store().with_password().await?;
    let backend = ctx.harness().open(&given.good).await?;
    let locks = ctx.client(backend, LONG, LONG)?;
    let lock = locks.mutex("secret")?.note("nothing to hide")?;
    let guard = lock.acquire().await?;
    let mut texts = vec![
        format!("{locks:?} {lock:?} {guard:?}"),
        format!("{:?} {:#?} {:?}", locks.backend(), locks.backend(), locks.info()),
        format!("{:?} {:?}", locks.inspect("secret").await?, locks.settings()),
    ];
    guard.release().await?;
    let error = refused(ctx.harness().open(&given.bad).await, ErrorKind::Denied, "a wrong password")?;
    texts.push(Stop::from(error.clone()).to_string());
    texts.push(format!("{error} {error:?} {error:#?}"));
    // URLs that are wrong in other ways.
    for broken in ["?ttl=oops", "?no_such_option=1", "/not-a-database", "?ttl=1s&ttl=2s", "\n"] {
        let url = format!("{}{broken}", given.good);
        let what = format!("a URL that ends in {broken:?}");
        let error = refused(ctx.harness().open(&url).await, ErrorKind::InvalidConfig, &what)?;
        texts.push(format!("{error} {error:?}"));
    }
    for text in texts {
        for secret in &given.secrets {
            let without = text.replace(secret.as_str(), "<HERE>");
            ensure!(text == without, "a password is shown: {without}");
        }
    }
    drop(given.keep);
    Ok(())
}

/// TLS works with the right authority, and with the wrong one or the wrong host nothing is sent.
async fn tls_fails_closed(ctx: &Ctx) -> Verdict {
    let given = ctx.store().with_tls().await?;
    let backend = ctx.harness().open(&given.good).await?;
    held(&backend, &exclusive(&crate::ctx::name("tls")?)?).await?;
    for (url, wrong) in &given.bad {
        let opened = ctx.soon(wrong, ctx.harness().open(url)).await?;
        let error = expect!(opened, Err(error) => error, "{wrong}");
        ensure!(error.kind() != ErrorKind::Misuse, "{wrong}: {error}");
    }
    drop(given.keep);
    Ok(())
}
