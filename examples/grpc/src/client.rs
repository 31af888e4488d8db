//! A gRPC client that waits for as long as a refusal says.

use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::orders;

/// Places an order, and again after each refusal that says how long to wait.
pub async fn place(channel: &Channel, item: &str) -> Result<u64, Status> {
    loop {
        let refused = match orders::place(channel, item).await {
            Err(status) if status.code() == Code::ResourceExhausted => status,
            placed => return placed,
        };
        let Some(wait) = wait(&refused) else {
            return Err(refused);
        };
        println!("{}; waiting for {} ms", refused.message(), wait.as_millis());
        tokio::time::sleep(wait).await;
    }
}

/// `None` where no wait helps.
fn wait(refused: &Status) -> Option<Duration> {
    refused.get_details_retry_info()?.retry_delay
}
