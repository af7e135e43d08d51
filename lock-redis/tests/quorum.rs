//! Quorums over real, independent servers: schedules that break naive protocols, dead minorities, churn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Raw, Server, request, soon};
use onelock_conformance::churn::Churn;
use onelock_conformance::faults::{Net, Node};
use onelock_core::{Backend, BootClock, FencingToken, Locks, Quorum, Release, Request, Settings, Standing};
use redis::Value;

/// Long: what is late in these tests is held on purpose.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(15);
const NAME: &str = "order";
/// Where the counters of the servers start, before their histories.
const FIRST: i64 = 10;

/// Servers whose counters for [`NAME`] start where a history left them.
async fn servers(counters: &[i64]) -> Vec<Server> {
    let mut servers = Vec::new();
    for count in counters {
        let server = Server::start(&[]).await;
        let backend = server.backend().await;
        // A counter that is missing starts at the clock: these go on from a number that is known.
        let one = request(NAME, "x");
        assert!(matches!(backend.acquire(&one).await.unwrap(), Standing::Held(_)));
        assert_eq!(backend.release(&one.ticket()).await.unwrap(), Release::Released);
        let mut raw = server.raw().await;
        let Value::Array(counters) = raw.run("KEYS onelock:*:n").await else { panic!("KEYS") };
        assert_eq!(counters.len(), 1);
        let counter: String = redis::from_redis_value(counters[0].clone()).unwrap();
        raw.run(&format!("SET {counter} {}", FIRST + count)).await;
        servers.push(server);
    }
    servers
}

/// A client of its own over all servers, and its networks to them.
async fn client(servers: &[Server]) -> (Quorum, Vec<Arc<Net>>) {
    let nets: Vec<_> = servers.iter().map(|_| Net::new(0)).collect();
    let mut members: Vec<Arc<dyn Backend>> = Vec::new();
    for (server, net) in servers.iter().zip(&nets) {
        members.push(Arc::new(Node::new(server.backend().await, net, format!("127.0.0.1:{}", server.port))));
    }
    (Quorum::with_member_timeout(members, MEMBER_TIMEOUT).unwrap(), nets)
}

fn attempt() -> Request {
    request(NAME, "x").queue(false)
}

fn token(standing: &Standing) -> FencingToken {
    match standing {
        Standing::Held(grant) => grant.token,
        other => panic!("not held: {other:?}"),
    }
}

/// Waits until this server shows an entry of the lock.
async fn until_taken(server: &Server) {
    let backend = server.backend().await;
    soon(async {
        while backend.inspect(&crate::common::name(NAME)).await.unwrap().holders.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The protocol as people first write it: count while taking, then lift *some majority* to the maximum.
struct Naive(Vec<Raw>);

impl Naive {
    async fn over(servers: &[Server], counters: &[i64]) -> Self {
        let mut all = Vec::new();
        for (server, count) in servers.iter().zip(counters) {
            let mut raw = server.raw().await;
            raw.run_args(&["SET", "naive:n", &count.to_string()]).await;
            all.push(raw);
        }
        Self(all)
    }

    async fn take(&mut self, node: usize, nonce: &str) -> Option<i64> {
        let script = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 60000) then \
                      return redis.call('INCR', KEYS[2]) end return nil";
        match self.0[node].run_args(&["EVAL", script, "2", "naive", "naive:n", nonce]).await {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    async fn lift(&mut self, node: usize, token: i64) {
        let script = "if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then \
                      redis.call('SET', KEYS[1], ARGV[1]) end return 1";
        self.0[node].run_args(&["EVAL", script, "1", "naive:n", &token.to_string()]).await;
    }

    async fn free(&mut self, node: usize) {
        self.0[node].run_args(&["DEL", "naive"]).await;
    }
}

/// B took one server, everything else of B is on its way. A takes the others, works and is done. Then B goes on.
#[tokio::test]
async fn a_slow_attempt_does_not_get_a_smaller_token_than_a_faster_holder() {
    let counters = [2, 0, 0];
    let servers = servers(&counters).await;
    // Naive: A lifts any majority, B's server among it, and B ends below A.
    let mut naive = Naive::over(&servers, &counters).await;
    let early = naive.take(1, "b").await.unwrap();
    let a = naive.take(0, "a").await.unwrap().max(naive.take(2, "a").await.unwrap());
    assert_eq!(naive.take(1, "a").await, None);
    naive.lift(1, a).await;
    naive.free(2).await;
    naive.free(0).await;
    let b = early.max(naive.take(2, "b").await.unwrap());
    assert!(b < a, "the naive protocol was expected to fail: {b} after {a}");

    let ((a, _), (b, nets)) = (client(&servers).await, client(&servers).await);
    nets[0].hold("acquire");
    nets[2].hold("acquire");
    let (mine, his) = (attempt(), attempt());
    let slow = tokio::spawn(async move { (b.acquire(&his).await, b) });
    until_taken(&servers[1]).await;
    let first = token(&a.acquire(&mine).await.unwrap());
    assert_eq!(first.get(), FIRST + 3);
    assert_eq!(a.release(&mine.ticket()).await.unwrap(), Release::Released);
    nets[2].let_go("acquire");
    nets[0].let_go("acquire");
    let (second, _b) = tokio::time::timeout(PATIENCE, slow).await.unwrap().unwrap();
    let second = token(&second.unwrap());
    assert!(second > first, "{second} after {first}");
}

/// A's entry on one server ends too early (a stepped clock) while its raise there is on the way; B takes that server.
#[tokio::test]
async fn a_raise_that_comes_too_late_does_not_count() {
    let counters = [2, 1, 0];
    let servers = servers(&counters).await;
    // Naive: the raise lands after B was numbered, and both see the same maximum.
    let mut naive = Naive::over(&servers, &counters).await;
    let a = naive.take(0, "a").await.unwrap().max(naive.take(1, "a").await.unwrap());
    naive.free(1).await;
    let b = naive.take(1, "b").await.unwrap().max(naive.take(2, "b").await.unwrap());
    naive.lift(1, a).await;
    assert_eq!(a, b, "the naive protocol was expected to give one token twice");

    let ((a, nets), (b, _)) = (client(&servers).await, client(&servers).await);
    nets[1].hold("raise");
    nets[2].hold("acquire");
    let (mine, his) = (attempt(), attempt());
    let (ticket, sent) = (mine.ticket(), mine.clone());
    let slow = tokio::spawn(async move { (a.acquire(&sent).await, a) });
    until_taken(&servers[0]).await;
    until_taken(&servers[1]).await;
    assert_eq!(servers[1].backend().await.release(&ticket).await.unwrap(), Release::Released);
    let second = token(&b.acquire(&his).await.unwrap());
    nets[1].let_go("raise");
    nets[2].let_go("acquire");
    let (first, _a) = tokio::time::timeout(PATIENCE, slow).await.unwrap().unwrap();
    assert!(matches!(first.unwrap(), Standing::Busy(_)), "A may not hold: its raise found another's entry");
    assert_eq!(second.get(), FIRST + 3);
}

/// A member that forgets its counter starts at its clock, above what the others have counted.
#[tokio::test]
async fn a_member_that_loses_its_counter_gives_no_token_again() {
    let servers = servers(&[0, 0, 0]).await;
    let ((a, a_nets), (b, b_nets)) = (client(&servers).await, client(&servers).await);
    // A holds the first two, and B the last; then the one they share forgets everything.
    a_nets[2].hold("acquire");
    let first = token(&a.acquire(&attempt()).await.unwrap());
    servers[1].raw().await.run("FLUSHALL").await;
    b_nets[0].hold("acquire");
    let second = token(&b.acquire(&attempt()).await.unwrap());
    assert!(second > first, "{second} after {first}");
    for net in a_nets.iter().chain(&b_nets) {
        net.let_go("acquire");
    }
}

/// Two of five are stopped where they are: nobody waits for them.
#[tokio::test]
async fn a_dead_minority_does_not_matter() {
    let servers = servers(&[0; 5]).await;
    let (quorum, _nets) = client(&servers).await;
    servers[1].signal("-STOP");
    servers[3].signal("-STOP");
    let began = Instant::now();
    let mine = attempt();
    token(&quorum.acquire(&mine).await.unwrap());
    assert_eq!(quorum.release(&mine.ticket()).await.unwrap(), Release::Released);
    assert!(began.elapsed() < MEMBER_TIMEOUT, "it waited for members that do not answer");
    servers[4].signal("-STOP");
    let error = quorum.acquire(&attempt()).await.unwrap_err();
    assert!(error.to_string().contains("2 of 5 members answered"), "{error}");
    for server in [1, 3, 4] {
        servers[server].signal("-CONT");
    }
}

/// Clients churn over five servers while two at a time are killed and come back: no two holders, tokens grow, work
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn churn_over_killed_minorities() {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.push(Server::start(&["--appendonly", "yes"]).await);
    }
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut members: Vec<Arc<dyn Backend>> = Vec::new();
        for server in &servers {
            members.push(server.backend().await);
        }
        // Where three of three must grant, every attempt that meets another waits for the dead this long.
        let quorum = Quorum::with_member_timeout(members, Duration::from_millis(250)).unwrap();
        let mut settings = Settings::default();
        (settings.ttl, settings.waiter_lease) = (Duration::from_secs(6), Duration::from_secs(6));
        let builder = Locks::builder(Arc::new(quorum)).clock(Arc::new(BootClock));
        clients.push(builder.settings(settings).build().unwrap());
    }
    let churn = Churn::start(clients, "quorum", 7).await.unwrap();
    churn.goes_on(5, PATIENCE * 2).await.unwrap();
    for pair in [(0, 1), (2, 3), (4, 0)] {
        for server in [pair.0, pair.1] {
            servers[server].signal("-KILL");
        }
        churn.goes_on(3, PATIENCE * 2).await.unwrap();
        for server in [pair.0, pair.1] {
            servers[server].restart_dead().await;
        }
        churn.goes_on(3, PATIENCE * 2).await.unwrap();
    }
    let report = churn.stop().await.unwrap();
    report.check().unwrap();
    assert!(report.holds.len() > 50, "{} holds", report.holds.len());
}
