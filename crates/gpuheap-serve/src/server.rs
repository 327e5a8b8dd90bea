//! Listens, and speaks HTTP with as many as it can bear.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::access::{Access, Listen};
use crate::error::Error;
use crate::library::Library;
use crate::routes::router;

/// Connections at the same time; more wait.
const CONNECTIONS: usize = 64;
/// How long the head of a request may take, or the next request to come.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may stay open: then it ends after its next answer, and browsers open another one.
const LIFE: Duration = Duration::from_secs(120);
/// How long that answer may take.
const GRACE: Duration = Duration::from_secs(30);
/// Bytes and lines of a request's head.
const HEAD_BYTES: usize = 16 << 10;
const HEAD_LINES: usize = 64;
/// Answers that are computed at the same time.
const COMPUTING: usize = 4;
/// How long work goes on after the end was asked for.
const LAST: Duration = Duration::from_millis(200);

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: StdListener,
    access: Access,
}

impl Server {
    /// Listens where it may: at the address, or at the first free port if none was asked for.
    pub fn bind(listen: &Listen) -> Result<Self, Error> {
        let mut failure = None;
        for address in listen.candidates() {
            match StdListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
                Ok((address, listener)) => return Ok(Self { listener, access: Access::new(address)? }),
                Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
                    failure = failure.or(Some(Error::Listen { address, source }));
                }
                Err(source) => return Err(Error::Listen { address, source }),
            }
        }
        Err(failure.unwrap_or(Error::Start(io::ErrorKind::AddrNotAvailable.into())))
    }

    /// Who is answered, and the address to open.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address: SocketAddr| address.port())
    }

    /// Answers until Ctrl-C, or until the system ends the process politely; a single file that cannot be read ends it.
    pub fn run(self, library: Arc<Library>) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(COMPUTING)
            .build()
            .map_err(Error::Start)?;
        let file = Arc::clone(&library);
        let router = router(library, self.access);
        let listener = self.listener;
        let outcome = runtime.block_on(async {
            listener.set_nonblocking(true).map_err(Error::Start)?;
            let listener = TcpListener::from_std(listener).map_err(Error::Start)?;
            tokio::select! {
                () = accept(&listener, &router) => Ok(()),
                error = file.failure() => Err(error),
                asked = end() => asked.map_err(Error::Start),
            }
        });
        runtime.shutdown_timeout(LAST);
        outcome
    }
}

/// Takes connections for ever.
async fn accept(listener: &TcpListener, router: &Router) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    converse(stream, router).await;
                    drop(permit);
                });
            }
            // Too many open files, or a connection that is gone again.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn converse(stream: TcpStream, router: Router) {
    // Small answers must not wait for more to come.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    // What goes wrong on a connection concerns its other end only.
    if timeout(LIFE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(GRACE, connection).await;
    }
}

/// Waits until somebody wants the server to end.
#[cfg(unix)]
async fn end() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn end() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
