//! The watches of a client on a stream that the test plays.

use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader};
use onelock_conformance::servers::etcd::Member;
use tokio::runtime::Handle;

use super::*;
use crate::config::EtcdConfig;

const KEY: &[u8] = b"line/holder";

/// Watches on a stream that the test plays.
async fn played() -> Arc<Watches> {
    let config = EtcdConfig::try_from("etcd://never".parse::<onelock_core::StoreUrl>().unwrap()).unwrap();
    let cluster = Cluster::new(config, Handle::current()).await.unwrap();
    let watches = Watches::new(cluster);
    watches.state.lock().running = true;
    watches
}

/// What the stream is to be sent: watches to open, watches to close.
fn ordered(watches: &Watches) -> (Vec<i64>, Vec<i64>) {
    let (open, close) = watches.orders();
    (open.into_iter().map(|(id, _)| id).collect(), close)
}

fn answer(watch_id: i64, revision: i64) -> PbWatchResponse {
    let header = Some(PbResponseHeader { revision, ..PbResponseHeader::default() });
    PbWatchResponse { watch_id, header, ..PbWatchResponse::default() }
}

fn created(id: i64, revision: i64) -> PbWatchResponse {
    PbWatchResponse { created: true, ..answer(id, revision) }
}

fn deleted(id: i64, mod_revision: i64) -> PbWatchResponse {
    let kv = Some(PbKeyValue { mod_revision, ..PbKeyValue::default() });
    let event = PbEvent { r#type: DELETE, kv, ..PbEvent::default() };
    PbWatchResponse { events: vec![event], ..answer(id, mod_revision) }
}

#[tokio::test]
async fn a_watch_that_may_be_served_late_is_opened_again() {
    let watches = played().await;
    let mut watching = watches.watch(&(KEY.to_vec(), 3));
    assert_eq!(ordered(&watches), (vec![1], vec![]));
    watches.take(created(1, 5)).unwrap();
    assert_eq!(watching.stands().await.unwrap(), 5);
    // Something was written after its revision was picked, perhaps before it was added.
    assert!(!watching.is_prompt(6));
    assert_eq!(ordered(&watches), (vec![2], vec![1]));
    // What the first still shows is read when the second stands.
    watches.take(deleted(1, 6)).unwrap();
    assert!(matches!(*watching.seen.borrow(), Seen::Nothing));
    watches.take(created(2, 6)).unwrap();
    assert_eq!(watching.stands().await.unwrap(), 6);
    assert!(watching.is_prompt(6));
    // A watch that is known to be prompt stays so, whatever is written.
    assert!(watching.is_prompt(9));
    assert_eq!(ordered(&watches), (vec![], vec![]));
    watches.take(deleted(2, 10)).unwrap();
    assert_eq!(watching.gone().await.unwrap(), 10);
}

#[tokio::test]
async fn the_end_of_an_earlier_watch_shows_that_a_watch_is_prompt() {
    let watches = played().await;
    // Nothing is written while the second is added; something while the fourth is.
    for (id, revision, prompt) in [(2, 7, true), (4, 8, false)] {
        drop(watches.watch(&(b"line/earlier".to_vec(), 1)));
        let mut watching = watches.watch(&(KEY.to_vec(), 3));
        watches.take(created(id, 7)).unwrap();
        // An event that was under way shows nothing.
        watches.take(deleted(id - 1, 7)).unwrap();
        watches.take(PbWatchResponse { canceled: true, ..answer(id - 1, revision) }).unwrap();
        assert_eq!(watching.stands().await.unwrap(), 7);
        assert_eq!(watching.is_prompt(9), prompt);
    }
}

/// Its end waits for the next watch to be opened, unless many wait: it then shows that this one is prompt.
#[tokio::test]
async fn a_watch_that_is_over_is_closed_behind_the_next() {
    let watches = played().await;
    let mut watching = watches.watch(&(KEY.to_vec(), 3));
    assert_eq!(ordered(&watches), (vec![1], vec![]));
    watches.take(created(1, 5)).unwrap();
    watches.take(deleted(1, 7)).unwrap();
    assert_eq!(watching.gone().await.unwrap(), 7);
    drop(watching);
    let _next = watches.watch(&(KEY.to_vec(), 8));
    assert_eq!(ordered(&watches), (vec![2], vec![1]));
}

#[tokio::test]
async fn a_busy_server_does_not_have_it_opened_for_ever() {
    let watches = played().await;
    let mut watching = watches.watch(&(KEY.to_vec(), 3));
    let mut opened = 1;
    for id in 1.. {
        watches.take(created(id, 10 * id)).unwrap();
        if watching.is_prompt(10 * id + 1) {
            break;
        }
        opened += 1;
    }
    assert_eq!(opened, 1 + AGAIN);
    drop(watching);
    assert_eq!(ordered(&watches), (vec![], vec![]), "what was never sent is not closed");
}

/// What a watch would show is compacted before the server has served it: the server ends it by a message without a revision.
#[tokio::test]
async fn a_compaction_ends_a_watch_and_no_wait() {
    let server = Member::single(None).await.unwrap();
    let mut client = Client::connect([server.address().to_string()], None).await.unwrap();
    client.put(KEY, "", None).await.unwrap();
    let put = client.put(KEY, "", None).await.unwrap();
    client.compact(put.header().unwrap().revision(), None).await.unwrap();
    let watches = played().await;
    let _watching = watches.watch(&(KEY.to_vec(), 3));
    watches.take(created(1, 5)).unwrap();
    let mut late = client.watch(KEY, Some(options(1).with_start_revision(1))).await.unwrap();
    let ended = loop {
        let message = late.message().await.unwrap().unwrap();
        if message.canceled() {
            break message;
        }
    };
    assert!(ended.compact_revision() > 0);
    let error = Error::from(watches.take(ended.0).unwrap_err());
    assert!(error.is_retryable(), "{error}");
}
