//! The listeners, and the end of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use metrics_exporter_prometheus::PrometheusHandle;
use throttle_tower::Page;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;

use crate::check::{Check, FileFollower};
use crate::files::Files;
use crate::http::{self, App};
use crate::service::Service;
use crate::settings::Settings;
use crate::store::Store;

/// A server that listens.
pub struct Server {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub admin: SocketAddr,
    tasks: Tasks,
    health: tonic_health::server::HealthReporter,
    store: Store,
    shutdown: Duration,
    _following: Vec<FileFollower>,
}

/// The listeners.
struct Tasks {
    running: JoinSet<anyhow::Result<()>>,
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
        let service = Service::new(
            store.backend.clone(),
            files.config(settings.shadow_mode)?,
            &settings,
        );
        let page = Page::new();
        let (mut by_rules, mut following) = (HashMap::new(), Vec::new());
        let mut check = |name: &str, file: &Path| {
            let (check, follows) = Check::new(name, file, store.backend.clone(), &page)?;
            following.push(follows);
            anyhow::Ok(check)
        };
        for (domain, file) in &settings.domains {
            by_rules.insert(domain.clone(), check(domain, file)?);
        }
        let service = service.with_rules(by_rules);
        let check = settings.rules.as_deref().map(|file| check("check", file));
        let check = check.transpose()?;

        let mut tasks = Tasks {
            running: JoinSet::new(),
            stop: watch::Sender::new(false),
        };
        let app = App {
            service: service.clone(),
            stopped: tasks.stop.subscribe(),
        };
        let http = tasks.serve(
            listen("http", settings.http).await?,
            http::proxies(app.clone(), check),
        )?;
        let admin = tasks.serve(
            listen("admin", settings.admin).await?,
            http::operators(app, &page, metrics),
        )?;

        let listener = listen("grpc", settings.grpc).await?;
        let grpc = listener.local_addr()?;
        let (health, health_service) = tonic_health::server::health_reporter();
        health
            .set_serving::<RateLimitServiceServer<Service>>()
            .await;
        let router = tonic::transport::Server::builder()
            .add_service(health_service)
            .add_service(RateLimitServiceServer::new(service.clone()));
        let ended = ended(tasks.stop.subscribe());
        tasks.running.spawn(async move {
            Ok(router
                .serve_with_incoming_shutdown(TcpListenerStream::new(listener), ended)
                .await?)
        });

        tokio::spawn(files.follow(settings.limits, settings.shadow_mode, service));
        let shutdown = Duration::from_secs(settings.shutdown_seconds);
        Ok(Self {
            grpc,
            http,
            admin,
            tasks,
            health,
            store,
            shutdown,
            _following: following,
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
        self.health
            .set_not_serving::<RateLimitServiceServer<Service>>()
            .await;
        self.health
            .set_service_status("", tonic_health::ServingStatus::NotServing)
            .await;
        self.tasks.stop.send_replace(true);
        let all = async {
            while let Some(task) = self.tasks.running.join_next().await {
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

impl Tasks {
    /// Serves HTTP, and returns the address.
    fn serve(&mut self, listener: TcpListener, router: Router) -> anyhow::Result<SocketAddr> {
        let address = listener.local_addr()?;
        let ended = ended(self.stop.subscribe());
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        self.running.spawn(async move {
            Ok(axum::serve(listener, router)
                .with_graceful_shutdown(ended)
                .await?)
        });
        Ok(address)
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
