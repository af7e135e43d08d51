//! Requests and rows of the largest size.

use crate::postgres_server::pgbouncer::PgBouncer;
use futures_util::future::join_all;
use onelock_core::{Backend as _, Note, Release, Renewal, Renewed, Request, Standing};

use crate::postgres_server::PostgresServer;
use crate::server::open;
use crate::sharing::request;

/// A thousand renewals of the longest names and notes are one request, with a pooler between and without.
#[tokio::test]
async fn a_full_batch_of_the_longest_names_is_renewed() {
    let server = PostgresServer::start(&["synchronous_commit=off", "log_statement=none"]).await.unwrap();
    let pooler = PgBouncer::start(server.port(), "transaction", &[]).await.unwrap();
    for (kind, url) in [("d", server.url()), ("p", pooler.url("postgres"))] {
        let store = open(&url).await;
        let requests: Vec<_> = (0..1_000)
            .map(|i| {
                let name = format!("{kind}{i:04}{}", "ü".repeat(125));
                assert_eq!(name.len(), 255);
                request(&name).note(Note::new("ü".repeat(256)).unwrap())
            })
            .collect();
        for taken in join_all(requests.iter().map(|request| store.acquire(request))).await {
            assert!(matches!(taken, Ok(Standing::Held(_))), "{taken:?}");
        }
        let due: Vec<_> =
            requests.iter().map(|r| Renewal::new(r.ticket(), r.lease, r.waiter_lease)).collect();
        for answer in store.renew(&due).await {
            assert!(matches!(answer, Ok(Renewed::Held(_))), "{answer:?}");
        }
        let tickets: Vec<_> = requests.iter().map(Request::ticket).collect();
        for released in join_all(tickets.iter().map(|ticket| store.release(ticket))).await {
            assert_eq!(released.unwrap(), Release::Released);
        }
    }
}
