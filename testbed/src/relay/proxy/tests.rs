//! Every fault does what it says, to a server that gives back each byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::super::{Act, Trigger};
use super::*;

/// Far more than a loaded machine needs for a few bytes over the loopback.
const PATIENCE: Duration = Duration::from_secs(20);
/// Within this nothing came.
const QUIET: Duration = Duration::from_millis(150);

/// An echo server, what it got, and a proxy before it.
struct Echo {
    link: Arc<Link>,
    proxy: Proxy,
    got: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    _server: tokio::task::JoinSet<()>,
}

async fn echo() -> Echo {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = listener.local_addr().unwrap();
    let (got, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut server = tokio::task::JoinSet::new();
    server.spawn({
        let (got, ended) = (Arc::clone(&got), Arc::clone(&ended));
        async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (got, ended) = (Arc::clone(&got), Arc::clone(&ended));
                connections.spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        got.fetch_add(count as u64, Ordering::SeqCst);
                        if stream.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        }
    });
    let link = Link::new();
    let proxy = Proxy::start(target, &link).await.unwrap();
    Echo { link, proxy, got, ended, _server: server }
}

impl Echo {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.proxy.address()).await.unwrap()
    }

    /// A connection that is known to work.
    async fn warm(&self) -> TcpStream {
        let mut stream = self.connect().await;
        say(&mut stream, b"hello").await;
        assert_eq!(hear(&mut stream, 5).await.unwrap(), b"hello");
        stream
    }

    async fn server_has(&self, bytes: u64) {
        until(|| self.got.load(Ordering::SeqCst) >= bytes).await;
    }
}

async fn until(mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "it never came");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn say(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

/// The next `count` bytes, or how the connection ended instead.
async fn hear(stream: &mut TcpStream, count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut bytes)).await.expect("no bytes came");
    read.map(|_| bytes)
}

async fn is_quiet(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    tokio::time::timeout(QUIET, stream.peek(&mut byte)).await.is_err()
}

async fn ends_with(stream: &mut TcpStream, kind: std::io::ErrorKind) {
    assert_eq!(hear(stream, 1).await.unwrap_err().kind(), kind);
}

use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};

#[tokio::test]
async fn without_a_fault_all_goes_through() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    let long: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut read, mut write) = stream.split();
    let mut back = vec![0; long.len()];
    let (sent, heard) = tokio::join!(write.write_all(&long), read.read_exact(&mut back));
    sent.unwrap();
    heard.unwrap();
    assert_eq!(back, long);
    assert_eq!(echo.link.hits.get(), 0);
}

#[tokio::test]
async fn a_stall_stops_both_ways_and_loses_nothing() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::Stall);
    say(&mut stream, b"late").await;
    assert!(is_quiet(&mut stream).await);
    assert_eq!(echo.got.load(Ordering::SeqCst), 5, "the server has it already");
    echo.link.heal();
    assert_eq!(hear(&mut stream, 4).await.unwrap(), b"late");
    assert!(echo.link.hits.get() > 0);
}

#[tokio::test]
async fn requests_alone_stall() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::StallRequests);
    say(&mut stream, b"late").await;
    assert!(is_quiet(&mut stream).await);
    assert_eq!(echo.got.load(Ordering::SeqCst), 5, "the server has it already");
    echo.link.heal();
    assert_eq!(hear(&mut stream, 4).await.unwrap(), b"late");
}

#[tokio::test]
async fn replies_alone_stall() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::StallReplies);
    say(&mut stream, b"late").await;
    echo.server_has(9).await;
    assert!(is_quiet(&mut stream).await);
    echo.link.heal();
    assert_eq!(hear(&mut stream, 4).await.unwrap(), b"late");
}

#[tokio::test]
async fn lost_requests_never_arrive_and_the_connection_ends_when_healed() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::LoseRequests);
    say(&mut stream, b"lost").await;
    assert!(is_quiet(&mut stream).await);
    echo.link.heal();
    ends_with(&mut stream, UnexpectedEof).await;
    echo.warm().await;
    assert_eq!(echo.got.load(Ordering::SeqCst), 10, "what was lost has arrived");
}

#[tokio::test]
async fn lost_replies_were_served_and_the_connection_ends_when_healed() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::LoseReplies);
    say(&mut stream, b"lost").await;
    echo.server_has(9).await;
    assert!(is_quiet(&mut stream).await);
    echo.link.heal();
    ends_with(&mut stream, UnexpectedEof).await;
}

#[tokio::test]
async fn a_reset_is_one() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::Reset);
    ends_with(&mut stream, ConnectionReset).await;
    let mut next = echo.connect().await;
    ends_with(&mut next, ConnectionReset).await;
    echo.link.heal();
    echo.warm().await;
}

#[tokio::test]
async fn half_open_the_server_knows_and_the_client_does_not() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::HalfOpen);
    until(|| echo.ended.load(Ordering::SeqCst) == 1).await;
    say(&mut stream, b"anybody?").await;
    let mut next = echo.connect().await;
    say(&mut next, b"hello?").await;
    assert!(is_quiet(&mut stream).await && is_quiet(&mut next).await);
    assert_eq!(echo.got.load(Ordering::SeqCst), 5);
    echo.link.heal();
    ends_with(&mut stream, ConnectionReset).await;
    ends_with(&mut next, ConnectionReset).await;
    echo.warm().await;
}

#[tokio::test]
async fn a_delay_counts_each_way_once() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    let late = Duration::from_millis(80);
    echo.link.set(Fault::Delay(late));
    let sent = Instant::now();
    say(&mut stream, b"slow").await;
    assert_eq!(hear(&mut stream, 4).await.unwrap(), b"slow");
    assert!(sent.elapsed() >= 2 * late, "{:?}", sent.elapsed());
    // Many at once take no longer each: it is a long way, not a narrow one.
    let (mut read, mut write) = stream.split();
    let sent = Instant::now();
    let say = async {
        for _ in 0..100 {
            write.write_all(b"slow").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut back = [0; 400];
    let (heard, ()) = tokio::join!(read.read_exact(&mut back), say);
    heard.unwrap();
    assert!(sent.elapsed() < 50 * late, "{:?}: one after the other", sent.elapsed());
}

#[tokio::test]
async fn only_replies_are_late() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    let late = Duration::from_millis(400);
    echo.link.set(Fault::DelayReplies(late));
    let mut at_once = false;
    // A busy machine may stall for as long as that: a request that is late itself is late each time.
    for round in 0..5 {
        let sent = Instant::now();
        say(&mut stream, b"slow").await;
        // The request is there, and its reply is on its way: what is set now does not hurry it.
        while echo.link.hits.get() == round {
            tokio::task::yield_now().await;
        }
        at_once |= sent.elapsed() < late;
        assert_eq!(hear(&mut stream, 4).await.unwrap(), b"slow");
        assert!(sent.elapsed() >= late, "{:?}", sent.elapsed());
        if at_once {
            break;
        }
    }
    assert!(at_once, "requests are late, too");
}

#[tokio::test]
async fn a_throttled_link_is_narrow_and_heals_at_once() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::Throttle(4_000));
    let sent = Instant::now();
    say(&mut stream, &[b'x'; 800]).await;
    hear(&mut stream, 800).await.unwrap();
    assert!(sent.elapsed() >= Duration::from_millis(190), "{:?}", sent.elapsed());
    echo.link.set(Fault::Throttle(1));
    say(&mut stream, &[b'x'; 4_000]).await;
    assert!(is_quiet(&mut stream).await);
    echo.link.heal();
    hear(&mut stream, 4_000).await.unwrap();
}

#[tokio::test]
async fn a_cut_comes_after_its_bytes_in_the_middle_of_a_message() {
    let echo = echo().await;
    let (mut stream, mut other) = (echo.warm().await, echo.warm().await);
    for count in [7, 3] {
        echo.link.set(Fault::CutAfter(count));
        for stream in [&mut stream, &mut other] {
            say(stream, b"1234").await;
            say(stream, b"5678").await;
            let count = usize::try_from(count).unwrap();
            assert_eq!(hear(stream, count).await.unwrap(), b"12345678"[..count]);
            ends_with(stream, ConnectionReset).await;
        }
        echo.link.heal();
        (stream, other) = (echo.warm().await, echo.warm().await);
    }
    // Short of it nothing happens.
    echo.link.set(Fault::CutAfter(8));
    say(&mut stream, b"12345678").await;
    hear(&mut stream, 8).await.unwrap();
    assert!(is_quiet(&mut stream).await);
}

#[tokio::test]
async fn a_request_is_cut_after_its_bytes() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.set(Fault::CutRequestsAfter(6));
    say(&mut stream, b"1234").await;
    assert_eq!(hear(&mut stream, 4).await.unwrap(), b"1234");
    say(&mut stream, b"5678").await;
    // The reply to the half may come before the reset, or be lost with it.
    while hear(&mut stream, 1).await.is_ok() {}
    until(|| echo.ended.load(Ordering::SeqCst) == 1).await;
    assert_eq!((echo.got.load(Ordering::SeqCst), echo.link.hits.get()), (5 + 6, 1));
}

#[tokio::test]
async fn a_held_request_arrives_when_it_is_let_go() {
    let echo = echo().await;
    let (mut stream, mut other) = (echo.warm().await, echo.warm().await);
    echo.link.arm(Trigger { pattern: b"SET".to_vec(), nth: 3, act: Act::HoldRequest });
    // The second one is in two pieces.
    for piece in [&b"SET 1 "[..], b"GET S", b"ET 2 "] {
        say(&mut stream, piece).await;
        assert_eq!(hear(&mut stream, piece.len()).await.unwrap(), piece);
    }
    say(&mut other, b"SET 3").await;
    tokio::time::timeout(PATIENCE, echo.link.struck()).await.unwrap();
    assert!(is_quiet(&mut other).await);
    assert_eq!(echo.got.load(Ordering::SeqCst), 10 + 16, "the held request is there");
    // Others go on, also with what would match.
    say(&mut stream, b"SET 4").await;
    hear(&mut stream, 5).await.unwrap();
    echo.link.let_go();
    assert_eq!(hear(&mut other, 5).await.unwrap(), b"SET 3");
    assert_eq!(echo.link.hits.get(), 1);
}

#[tokio::test]
async fn a_held_reply_was_served_before() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.arm(Trigger { pattern: b"SET".to_vec(), nth: 1, act: Act::HoldReply });
    say(&mut stream, b"SET").await;
    echo.server_has(8).await;
    assert!(is_quiet(&mut stream).await);
    echo.link.let_go();
    assert_eq!(hear(&mut stream, 3).await.unwrap(), b"SET");
    say(&mut stream, b"SET").await;
    assert_eq!(hear(&mut stream, 3).await.unwrap(), b"SET");
}

#[tokio::test]
async fn a_lost_reply_is_a_reset_after_the_deed() {
    let echo = echo().await;
    let (mut stream, mut other) = (echo.warm().await, echo.warm().await);
    echo.link.arm(Trigger { pattern: b"SET".to_vec(), nth: 2, act: Act::LoseReply });
    say(&mut stream, b"SET 1").await;
    hear(&mut stream, 5).await.unwrap();
    say(&mut stream, b"SET 2").await;
    ends_with(&mut stream, ConnectionReset).await;
    echo.server_has(20).await;
    say(&mut other, b"SET 3").await;
    hear(&mut other, 5).await.unwrap();
}

#[tokio::test]
async fn a_reset_request_is_never_served() {
    let echo = echo().await;
    let mut stream = echo.warm().await;
    echo.link.arm(Trigger { pattern: b"SET".to_vec(), nth: 1, act: Act::Reset });
    say(&mut stream, b"GET").await;
    hear(&mut stream, 3).await.unwrap();
    say(&mut stream, b"SET").await;
    ends_with(&mut stream, ConnectionReset).await;
    echo.warm().await;
    assert_eq!(echo.got.load(Ordering::SeqCst), 5 + 3 + 5);
}

#[tokio::test]
async fn mangled_replies_are_counted_and_healing_ends_them() {
    let echo = echo().await;
    let mut altered = 0;
    echo.link.set(Fault::Mangle(11));
    for _ in 0..200 {
        let mut stream = echo.connect().await;
        say(&mut stream, b"an answer with the number 42\r\n").await;
        let mut back = [0; 30];
        let read = tokio::time::timeout(QUIET, stream.read(&mut back)).await;
        altered += u64::from(!matches!(read, Ok(Ok(30)) if &back == b"an answer with the number 42\r\n"));
    }
    // A repetition does not show in the first bytes.
    assert!(echo.link.hits.get() >= altered && altered > 60, "{altered} seen of {}", echo.link.hits.get());
    echo.link.heal();
    let before = echo.link.hits.get();
    echo.warm().await;
    assert_eq!(echo.link.hits.get(), before);
}

#[tokio::test]
async fn turns_are_counted() {
    let echo = echo().await;
    let mut client = echo.connect().await;
    client.set_nodelay(true).unwrap();
    let mut answer = [0; 4];
    for turn in 1..=3 {
        client.write_all(b"abcd").await.unwrap();
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(echo.link.turns.get(), turn);
    }
    // Four requests at once: one turn, unless the answer to the first overtakes the last.
    client.write_all(b"abcdefghijklmnop").await.unwrap();
    for _ in 0..4 {
        client.read_exact(&mut answer).await.unwrap();
    }
    assert_eq!(echo.link.turns.get(), 4);
}

#[tokio::test]
async fn on_http2_only_requests_are_turns() {
    let echo = echo().await;
    let mut client = echo.connect().await;
    client.set_nodelay(true).unwrap();
    let frame = |kind: u8, length: u8| {
        let header = [0, 0, length, kind, 0, 0, 0, 0, 1];
        header.into_iter().chain(std::iter::repeat_n(1, usize::from(length))).collect::<Vec<u8>>()
    };
    let (settings, ping, request, data) = (frame(4, 6), frame(6, 8), frame(1, 200), frame(0, 40));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    for (said, turns) in [
        ([preface, settings].concat(), 0),
        (ping.clone(), 0),
        ([request.clone(), data].concat(), 1),
        ([ping.clone(), frame(8, 4)].concat(), 1),
        ([ping, request].concat(), 2),
    ] {
        client.write_all(&said).await.unwrap();
        client.read_exact(&mut vec![0; said.len()]).await.unwrap();
        assert_eq!(echo.link.turns.get(), turns, "{said:?}");
    }
}
