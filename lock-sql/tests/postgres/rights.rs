//! The rights of the store's page are enough, and each that is missing is named. That the whole suite passes with them is
//! shown by the suite: it runs as such a role.

use crate::postgres_server::pgbouncer::PgBouncer;
use onelock_core::store::Checked;
use onelock_core::{Backend, Error, ErrorKind, FencingToken, Page, Renewal, Standing};
use onelock_sql::PostgresBackend;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::{open, try_open};
use crate::sharing::request;

fn as_app(server: &PostgresServer, options: &str) -> String {
    format!("postgres://app@127.0.0.1:{}/postgres?{options}", server.port())
}

async fn refused(url: &str) -> Error {
    let error = try_open(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    error
}

fn names(error: &Error, what: &[&str]) {
    let text = error.to_string();
    for what in what {
        assert!(text.contains(what), "{what:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn each_right_that_is_missing_at_the_start_is_named() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("CREATE ROLE app").await.unwrap();
    let error = refused(&as_app(&server, "")).await;
    names(&error, &["refused the login", "app"]);

    admin.execute("ALTER ROLE app LOGIN; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC").await.unwrap();
    names(&refused(&as_app(&server, "")).await, &["this needs CONNECT on the database", "postgres"]);

    admin.execute("GRANT CONNECT ON DATABASE postgres TO app").await.unwrap();
    let error = refused(&as_app(&server, "")).await;
    names(&error, &["this needs CREATE on the database", "migration", "migrate=false"]);
    let error = try_open(&as_app(&server, "migrate=false")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");

    let sql = onelock_sql::postgres::migration("onelock").unwrap();
    admin.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    for options in ["", "migrate=false"] {
        names(&refused(&as_app(&server, options)).await, &["USAGE on schema onelock"]);
    }
    admin.execute("GRANT USAGE ON SCHEMA onelock TO app").await.unwrap();
    let error = refused(&as_app(&server, "")).await;
    names(&error, &["EXECUTE on function onelock.onelock_version"]);
    admin.execute("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA onelock TO app").await.unwrap();
    open(&as_app(&server, "")).await;
}

/// Each verb, with the function that it calls.
async fn each_verb(store: &Checked<PostgresBackend>) -> Vec<(&'static str, Option<Error>)> {
    let held = request("n");
    let token = FencingToken::new(1).unwrap();
    let due = [Renewal::new(held.ticket(), held.lease, held.waiter_lease)];
    let acquired = store.acquire(&held).await;
    vec![
        ("acquire", acquired.err()),
        ("renew", store.renew(&due).await.remove(0).err()),
        ("raise", store.raise(&held.ticket(), token).await.err()),
        ("inspect", store.inspect(&held.name).await.err()),
        ("list", store.list("", &Page::first(9).unwrap()).await.err()),
        // Of an entry that is not there it answers at once.
        ("watched", store.wait(&request("other").ticket()).await.err()),
        ("evict", store.evict(&held.name, token).await.err()),
        ("release", store.release(&held.ticket()).await.err()),
    ]
}

#[tokio::test]
async fn each_function_that_may_not_be_called_is_named_and_the_others_work() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let store = open(&as_app(&server, "migrate=false")).await;
    for (function, error) in each_verb(&store).await {
        assert!(error.is_none(), "{function}: {error:?}");
    }
    let functions = ["acquire", "renew", "raise", "inspect", "list", "watched", "evict", "release"];
    for without in functions {
        let change = |what: &str| {
            AssertSqlSafe(format!(
                "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = '{without}' \
                 AND pronamespace = 'onelock'::regnamespace LOOP \
                 EXECUTE format('{what}', f); END LOOP; END $$"
            ))
        };
        admin.execute(change("REVOKE EXECUTE ON FUNCTION %s FROM app")).await.unwrap();
        for (function, error) in each_verb(&store).await {
            let Some(error) = error else {
                assert_ne!(function, without, "it was called without the right");
                continue;
            };
            assert_eq!((function, error.kind()), (without, ErrorKind::Denied), "{error}");
            assert!(!error.is_unclear(), "nothing happened");
            names(&error, &[&format!("EXECUTE on function onelock.{without}")]);
        }
        admin.execute(change("GRANT EXECUTE ON FUNCTION %s TO app")).await.unwrap();
    }
}

/// A join whose second transaction may not be has no first one either.
#[tokio::test]
async fn a_join_that_may_not_wait_for_the_disk_joins_nothing() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("REVOKE EXECUTE ON FUNCTION onelock.flush() FROM app").await.unwrap();
    let (other, store) = (open(&server.url()).await, open(&as_app(&server, "migrate=false")).await);
    let Standing::Held(_) = other.acquire(&request("n")).await.unwrap() else { panic!() };
    let error = store.acquire(&request("n")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && !error.is_unclear(), "{error}");
    names(&error, &["flush"]);
    let line = store.inspect(&request("n").name).await.unwrap();
    assert!(line.waiters.is_empty(), "nobody gives it back: {line:?}");
}

#[tokio::test]
async fn who_takes_locks_has_no_right_on_the_tables() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let store = open(&as_app(&server, "migrate=false")).await;
    let Standing::Held(_) = store.acquire(&request("n")).await.unwrap() else { panic!() };
    let mut admin = server.admin().await.unwrap();
    admin
        .execute("CREATE ROLE stranger; GRANT USAGE ON SCHEMA onelock TO stranger; SET ROLE app")
        .await
        .unwrap();
    let may_not = async |admin: &mut sqlx::PgConnection, sql: &str| {
        let error = admin.execute(AssertSqlSafe(sql.to_owned())).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "42501", "{sql}");
    };
    for table in ["line", "front", "block", "alive", "version"] {
        for sql in [format!("SELECT 1 FROM onelock.{table}"), format!("DELETE FROM onelock.{table}")] {
            may_not(&mut admin, &sql).await;
        }
    }
    // What the verbs share runs with the caller's own rights, which are none.
    may_not(&mut admin, "SELECT onelock.settle('n')").await;
    admin.execute("RESET ROLE; SET ROLE stranger").await.unwrap();
    may_not(&mut admin, "SELECT onelock.evict('n', 1)").await;
}

/// Where nobody may call what is new, the grants of the page are enough for the procedures, too.
#[tokio::test]
async fn the_grants_of_the_page_are_enough_where_defaults_are_revoked() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON ROUTINES FROM PUBLIC").await.unwrap();
    server.migrate("app").await.unwrap();
    let store = open(&as_app(&server, "migrate=false")).await;
    for (function, error) in each_verb(&store).await {
        assert!(error.is_none(), "{function}: {error:?}");
    }
}

/// A role that may not write is told so: it is no standby, and a retry does not help.
#[tokio::test]
async fn a_role_that_is_read_only_is_told_so() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("ALTER ROLE app SET default_transaction_read_only = on").await.unwrap();
    let store = open(&as_app(&server, "migrate=false")).await;
    let error = store.acquire(&request("n")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.is_unclear(), "nothing happened");
    names(&error, &["default_transaction_read_only", "app"]);
    assert!(!error.to_string().contains("standby"), "{error}");
}

/// Settings of hardened and of old servers.
#[tokio::test]
async fn old_strings_and_missing_digests_do_no_harm() {
    let server = PostgresServer::start(&["standard_conforming_strings=off"]).await.unwrap();
    let pooler = PgBouncer::start(server.port(), "transaction", &[]).await.unwrap();
    for url in [server.url(), pooler.url("postgres")] {
        let store = open(&url).await;
        for (function, error) in each_verb(&store).await {
            assert!(error.is_none(), "{function} at {url}: {error:?}");
        }
    }
    // Servers that keep to FIPS have no MD5.
    let mut admin = server.admin().await.unwrap();
    let sql = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'onelock'::regnamespace AND prosrc ~* 'md5'";
    assert_eq!(admin.fetch_one(sql).await.unwrap().get::<i64, _>(0), 0);
}
