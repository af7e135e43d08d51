//! Rights, schemas, poolers and connections.

use std::sync::Arc;

use lock_core::{BootClock, StoreUrl};
use lock_sql::{POSTGRES_DRIVER, PostgresBackend, PostgresConfig};

pub(crate) async fn open(url: &str) -> PostgresBackend {
    try_open(url).await.unwrap()
}

pub(crate) async fn try_open(url: &str) -> lock_core::Result<PostgresBackend> {
    let _ = (POSTGRES_DRIVER, Arc::new(BootClock));
    PostgresBackend::open(PostgresConfig::from_url(url.parse::<StoreUrl>()?)?).await
}
