//! The listeners, and the end of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use metrics_exporter_prometheus::PrometheusHandle;
use throttle_tower::Page;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;

use crate::check::Check;
use crate::files::Files;
use crate::http::{self, App};
use crate::service::Service;
use crate::settings::Settings;
use crate::store::Store;

type Grpc = RateLimitServiceServer<Service>;

/// A server that listens.
pub struct Server {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub admin: SocketAddr,
    listeners: Listeners,
    health: tonic_health::server::HealthReporter,
    store: Store,
    shutdown: Duration,
}

#[derive(Default)]
struct Listeners {
    running: JoinSet<std::io::Result<()>>,
    /// `true` ends them.
    stop: watch::Sender<bool>,
}

impl Server {
    /// Starts on a store.
    pub async fn start(
        store: Store,
        settings: Settings,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        let files = Files::read(settings.limits.as_deref())?;
        let config = files.config(settings.shadow_mode)?;
        let mut service = Service::new(store.backend.clone(), config, &settings);
        let page = Page::new();
        let check =
            |name: &str, file: &PathBuf| Check::new(name, file, store.backend.clone(), &page);
        let domains = settings.domains.iter();
        let by_rules = domains.map(|(name, file)| Ok((name.clone(), check(name, file)?)));
        service.by_rules = Arc::new(by_rules.collect::<anyhow::Result<_>>()?);
        let rules = settings.rules.as_ref();
        let check = rules.map(|file| check("check", file)).transpose()?;

        let mut listeners = Listeners::default();
        let app = App {
            service: service.clone(),
            stopped: listeners.stop.subscribe(),
        };
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<Grpc>().await;
        let grpc = Routes::new(Grpc::new(service.clone()))
            .add_service(health_service)
            .into_axum_router();
        let grpc = listeners.serve("grpc", settings.grpc, grpc).await?;
        let proxies = http::proxies(app.clone(), check);
        let http = listeners.serve("http", settings.http, proxies).await?;
        let operators = http::operators(app, &page, metrics);
        let admin = listeners.serve("admin", settings.admin, operators).await?;

        tokio::spawn(files.follow(settings.limits, settings.shadow_mode, service));
        Ok(Self {
            grpc,
            http,
            admin,
            listeners,
            health,
            store,
            shutdown: Duration::from_secs(settings.shutdown_seconds),
        })
    }

    /// Runs until the process is asked to end.
    pub async fn run(self) -> anyhow::Result<()> {
        tracing::info!(grpc = %self.grpc, http = %self.http, admin = %self.admin, "listening");
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
        tracing::info!("ending");
        self.health.set_not_serving::<Grpc>().await;
        self.health
            .set_service_status("", tonic_health::ServingStatus::NotServing)
            .await;
        self.listeners.stop.send_replace(true);
        let all = async {
            while let Some(task) = self.listeners.running.join_next().await {
                task??;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(self.shutdown, all).await {
            Ok(ended) => ended?,
            Err(_) => tracing::warn!("some clients have not disconnected"),
        }
        drop(self.store.saver.take());
        Ok(())
    }
}

impl Listeners {
    /// Serves HTTP/1.1 and HTTP/2, and returns the address. `field` is the setting's.
    async fn serve(
        &mut self,
        field: &str,
        address: SocketAddr,
        router: Router,
    ) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("{field} is {address}: cannot listen there; choose another address")
        })?;
        let address = listener.local_addr()?;
        // Small answers leave at once, also while others are not acknowledged.
        let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
        let mut stopped = self.stop.subscribe();
        // An error says that the server is gone.
        let ended = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        let serving = axum::serve(listener, router).with_graceful_shutdown(ended);
        self.running.spawn(serving.into_future());
        Ok(address)
    }
}
