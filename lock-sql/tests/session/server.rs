//! A server of session locks, whichever it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onelock_core::{BootClock, Driver, Guard, Locks, Result, Settings};

/// Far more than a loaded machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server with what the store needs, and a user who has the rights of the store's page and no other.
#[async_trait]
pub(crate) trait Server: Sized + Send + Sync {
    const DRIVER: Driver;

    /// What stands in a request to give a lock back, and in no other.
    const GIVE: &[u8];

    /// One with settings of its own.
    async fn start_with(settings: &[&str]) -> Self;

    /// Where it listens.
    fn at(&self) -> u16;

    /// Where that user finds a server that listens at `port`, with more options: each begins with `&`.
    fn url_at(port: u16, options: &str) -> String;

    /// Kills it and starts it again.
    async fn crash(&self);

    /// The sessions that wait for a lock, in an order that stays.
    async fn waiting(&self) -> Vec<String>;

    /// The locks of all sessions.
    async fn locks(&self) -> Vec<String>;

    /// The sessions of all clients, which hold a lock or not.
    async fn sessions(&self) -> Vec<String>;

    /// A client.
    async fn open(&self, options: &str) -> Locks {
        open::<Self>(&Self::url_at(self.at(), options)).await.unwrap()
    }
}

pub(crate) async fn open<S: Server>(url: &str) -> Result<Locks> {
    Locks::open(url, &[S::DRIVER], Settings::default(), Arc::new(BootClock)).await
}

/// Polls until so many sessions wait, and gives them.
pub(crate) async fn until_waiting(server: &impl Server, count: usize) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let sessions = server.waiting().await;
        if sessions.len() == count {
            return sessions;
        }
        assert!(Instant::now() < end, "{} sessions wait, not {count}", sessions.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn acquire(locks: &Locks, name: &str) -> tokio::task::JoinHandle<Result<Guard>> {
    let lock = locks.mutex(name).unwrap();
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

/// Makes each of these functions, which take a server, a test of its own on this server.
macro_rules! tests_on {
    ($server:ty: $($module:ident::$scenario:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() {
            let server = <$server as $crate::server::Server>::start_with(&[]).await;
            $crate::$module::$scenario(&server).await;
        }
    )* };
    // What every server must do.
    ($server:ty) => {
        $crate::server::tests_on! {
            $server:
            queue::the_queue_keeps_its_order_and_its_places,
            queue::a_runtime_that_ends_takes_nothing_with_it,
            queue::who_gives_up_leaves_the_queue,
            queue::a_dead_holder_is_gone_at_once,
            queue::a_silent_waiter_holds_for_its_lease_at_most,
            queue::a_client_without_connections_says_so,
            silence::a_session_without_an_answer_keeps_no_other_lease,
            silence::a_look_without_an_answer_keeps_no_lease,
            silence::a_wait_that_stalls_keeps_no_other_lease,
            silence::a_waiter_that_lost_its_connection_leaves_the_queue,
            silence::a_grant_for_nobody_is_given_up,
            silence::who_has_waited_long_gives_back,
            silence::a_release_that_was_given_up_keeps_no_connection,
            silence::looks_without_an_answer_end_together,
            silence::looks_at_a_slow_server_have_their_turn,
            silence::a_look_without_an_answer_fails_nobody_who_came_later,
            silence::who_asks_again_has_a_place,
            silence::a_release_whose_caller_left_is_repeated,
            silence::a_release_that_is_repeated_finds_nothing_held,
            silence::what_ended_for_being_idle_needs_no_look,
            turns::few_sessions_serve_many,
            turns::a_busy_lock_is_waited_for_by_one_connection,
            turns::a_lost_unlock_harms_nobody,
            numbers::a_larger_token_epoch_ends_the_smaller,
        }
    };
}
pub(crate) use tests_on;
