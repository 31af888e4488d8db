//! The programs before a migration, as the guide shows them, build an app.

include!(concat!(env!("OUT_DIR"), "/migrating.rs"));

#[tokio::test]
async fn programs_before_a_migration_build() {
    let _: [axum::Router; 2] = [before_1::app(), before_2::app()];
    let _: fn(redis::aio::MultiplexedConnection) -> axum::Router = before_3::app;
}
