//! A name whose counter has come to its end: the server's sequence is a signed number of 32 bits, and what it does past
//! that is no order.

use std::path::PathBuf;
use std::sync::Arc;

use onelock_conformance::ctx::{held, name, number, renew, renewal, request, ticket, waiting};
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::{Backend, Mode, Renewed};
use zookeeper_client as zk;

use crate::support::harness::open;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};

/// The server's newest snapshot.
fn snapshot(server: &ZkServer) -> Verdict<PathBuf> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(server.data())? {
        let path = file?.path();
        let zxid = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("snapshot."));
        if let Some(zxid) = zxid.and_then(|zxid| i64::from_str_radix(zxid, 16).ok()) {
            files.push((zxid, path));
        }
    }
    Ok(files.into_iter().max().context("a snapshot")?.1)
}

/// Sets how many children the node at `path` has had, in a snapshot.
fn wear(snapshot: &PathBuf, path: &str, count: i32) -> Verdict {
    let mut bytes = std::fs::read(snapshot)?;
    let mut record = u32::try_from(path.len())?.to_be_bytes().to_vec();
    record.extend_from_slice(path.as_bytes());
    let found = bytes.windows(record.len()).position(|window| window == record);
    // Behind the path: the data, the number of the access list, four numbers of 64 bits and one of 32.
    let data = found.context("the node in the snapshot")? + record.len();
    let length = i32::from_be_bytes(bytes[data..data + 4].try_into()?);
    let at = data + 4 + usize::try_from(length.max(0))? + 8 + 4 * 8 + 4;
    bytes[at..at + 4].copy_from_slice(&count.to_be_bytes());
    // The checksum of all, and a slash that says that it is complete.
    let end = bytes.len() - 13;
    let sum = adler32(&bytes[..end]);
    bytes[end..end + 8].copy_from_slice(&i64::from(sum).to_be_bytes());
    Ok(std::fs::write(snapshot, bytes)?)
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// The line keeps its order across the end of the counter and after it.
#[tokio::test(flavor = "multi_thread")]
async fn the_line_outlives_its_counter() -> Verdict {
    let defines = vec!["zookeeper.digest.enabled=false".to_owned()];
    let server = ZkServer::start(Setup { defines, ..Setup::default() }).await?;
    let address = server.address().to_string();
    let folder = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let admin = zk::Client::connect(&address).await?;
    admin.mkdir("/own/worn", &folder).await?;
    drop(admin);
    // It writes a snapshot when it starts.
    server.restart().await?;
    server.process.kill()?;
    wear(&snapshot(&server)?, "/own/worn", i32::MAX - 4)?;
    server.launch()?;
    server.ready().await?;
    let url = format!("zk://{address}/own?tick=200ms");
    let clients: [Arc<dyn Backend>; 2] = [open(&url).await?, open(&url).await?];
    let admin = zk::Client::connect(&address).await?;
    let name = name("worn")?;
    let mut line = Vec::new();
    let mut tails = Vec::new();
    for i in 0..12 {
        let client = &clients[i % 2];
        let request = request(&name, Mode::Exclusive)?;
        let token = if i == 0 {
            held(client, &request).await?.token
        } else {
            number(waiting(client, &request).await?)?
        };
        ensure!(line.last().is_none_or(|(_, _, last)| token > *last), "entry {i}: its number");
        line.push((client, request, token));
        let children = admin.list_children("/own/worn").await?;
        tails = children
            .iter()
            .map(|child| child.rsplit("lock-").next().unwrap_or_default().to_owned())
            .collect();
    }
    tails.sort();
    let end = i32::MAX.to_string();
    ensure!(
        tails.contains(&end) && tails.contains(&(i32::MAX - 4).to_string()),
        "the counter is not worn: {tails:?}"
    );
    ensure!(
        tails.iter().any(|tail| tail.starts_with('-'))
            || tails.iter().filter(|tail| **tail == end).count() > 1,
        "the counter is as good as new: {tails:?}"
    );
    for i in 0..line.len() {
        let shown = clients[0].inspect(&name).await?;
        let tokens: Vec<_> = shown.holders.iter().chain(&shown.waiters).map(|view| view.token).collect();
        let wanted: Vec<_> = line[i..].iter().map(|(.., token)| *token).collect();
        ensure_eq!(tokens, wanted, "the line without {i}");
        for (j, (client, request, token)) in line.iter().enumerate().skip(i) {
            let answer = renew(client, renewal(request, *token)).await?;
            ensure_eq!(matches!(answer, Renewed::Held(_)), i == j, "whether {j} holds when {i} are gone");
        }
        let (client, request, token) = &line[i];
        // The next one is told.
        let next = line.get(i + 1).map(|(client, request, token)| {
            let (client, ticket) = (Arc::clone(client), ticket(request, *token));
            tokio::spawn(async move { client.wait(&ticket).await })
        });
        client.release(&ticket(request, *token)).await?;
        if let Some(next) = next {
            let told = tokio::time::timeout(std::time::Duration::from_secs(30), next).await;
            told.map_err(|_| Stop::failed(format!("{i} left and nobody was told")))???;
        }
    }
    Ok(())
}
