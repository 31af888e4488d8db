//! The listeners, and the end of them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;

use crate::files::Files;
use crate::service::Service;
use crate::settings::Settings;
use crate::store::Store;

/// A server that listens.
pub struct Server {
    pub grpc: SocketAddr,
    /// `true` ends it.
    stop: watch::Sender<bool>,
    tasks: JoinSet<anyhow::Result<()>>,
    store: Store,
    shutdown: Duration,
}

impl Server {
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        let store = Store::open(&settings)?;
        Self::on(store, settings).await
    }

    /// Starts on a store.
    pub async fn on(store: Store, settings: Settings) -> anyhow::Result<Self> {
        let files = Files::read(settings.limits.as_deref())?;
        let service = Service::new(
            store.backend.clone(),
            files.config(settings.shadow_mode)?,
            &settings,
        );
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();

        let listener = listen("grpc", settings.grpc).await?;
        let grpc = listener.local_addr()?;
        let (reporter, health) = tonic_health::server::health_reporter();
        let rate_limits = RateLimitServiceServer::new(service.clone());
        reporter
            .set_serving::<RateLimitServiceServer<Service>>()
            .await;
        let router = tonic::transport::Server::builder()
            .add_service(health)
            .add_service(rate_limits);
        let ended = ended(stopped.clone());
        tasks.spawn(async move {
            Ok(router
                .serve_with_incoming_shutdown(TcpListenerStream::new(listener), ended)
                .await?)
        });

        tokio::spawn(files.follow(settings.limits, settings.shadow_mode, service.clone()));
        let shutdown = Duration::from_secs(settings.shutdown_seconds);
        Ok(Self {
            grpc,
            stop,
            tasks,
            store,
            shutdown,
        })
    }

    /// Runs until the process is asked to end.
    pub async fn run(self) -> anyhow::Result<()> {
        tracing::info!(grpc = %self.grpc, "listening");
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted?,
            _ = terminated.recv() => {}
        }
        self.stop().await
    }

    /// Takes no more requests, answers those that it has, and saves the counts.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        let all = async {
            while let Some(task) = self.tasks.join_next().await {
                task??;
            }
            anyhow::Ok(())
        };
        if tokio::time::timeout(self.shutdown, all).await.is_err() {
            tracing::warn!("some clients did not disconnect");
        }
        drop(self.store.saver.take());
        Ok(())
    }
}

async fn ended(mut stopped: watch::Receiver<bool>) {
    // An error says that the server is gone.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn listen(field: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listening = TcpListener::bind(address).await;
    listening.with_context(|| {
        format!("{field} is {address}: cannot listen there; choose another address")
    })
}
