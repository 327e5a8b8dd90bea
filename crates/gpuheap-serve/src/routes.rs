//! The questions and who answers them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use axum::{Router, middleware};
use gpuheap_explain::Error as ExplainError;
use serde::Serialize;

use crate::access::Access;
use crate::answer::{self, Takes};
use crate::error::Error;
use crate::guard::guard;
use crate::library::{Entrance, Held, Library, Visit};
use crate::loaded::Loaded;
use crate::query::Query;
use crate::{pages, whatif};

/// Points of a timeline where none are asked for, and the most that are.
const POINTS: u32 = 1500;
const MOST_POINTS: u32 = 20_000;

type Asked = State<Arc<Library>>;

/// Answers questions about the recordings of a library, for those who have access.
pub fn router(library: Arc<Library>, access: Access) -> Router {
    Router::new()
        .route("/", get(entrance))
        .route("/recordings", get(list_page))
        .route("/recordings/{id}", get(report_page))
        .route("/api/recordings", get(list))
        .route("/api/recordings/{id}/page", get(page))
        .route("/api/recordings/{id}/moment", get(moment))
        .route("/api/recordings/{id}/timeline", get(timeline))
        .route("/api/recordings/{id}/whatif", get(whatif_curves))
        .route("/api/skew", get(skew))
        .route("/api/diff", get(diff))
        .route("/favicon.ico", get(async || answer::nothing()))
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(Arc::new(access), guard))
        .with_state(library)
}

async fn nowhere(headers: HeaderMap) -> Response {
    answer::error(&Error::NotFound, Takes::of(&headers))
}

async fn entrance(State(library): Asked, headers: HeaderMap) -> Response {
    match library.entrance() {
        Entrance::Recording(id) => answer::redirect(&format!("/recordings/{id}")),
        Entrance::NotYet(id) => show_recording(&library, Ok(id), &headers),
        Entrance::List => show_list(&library, &headers),
    }
}

async fn list_page(State(library): Asked, headers: HeaderMap) -> Response {
    show_list(&library, &headers)
}

fn show_list(library: &Library, headers: &HeaderMap) -> Response {
    let page = pages::folder(&library.title());
    answer::html(StatusCode::OK, page, &pages::folder_policy(), Takes::of(headers))
}

async fn report_page(State(library): Asked, Path(id): Path<String>, headers: HeaderMap) -> Response {
    show_recording(&library, number(&id), &headers)
}

fn show_recording(library: &Library, id: Result<u32, Error>, headers: &HeaderMap) -> Response {
    let takes = Takes::of(headers);
    let visit = id.and_then(|id| Ok((id, library.visit(id).ok_or(Error::NoRecording)?)));
    match visit {
        Ok((id, Visit::Ready { title })) => {
            let page = gpuheap_report::html::to_served_html(&title, &format!("/api/recordings/{id}/page"));
            answer::html(StatusCode::OK, page, &pages::report_policy(), takes)
        }
        Ok((_, Visit::NotYet { name, doing })) => {
            answer::html(StatusCode::ACCEPTED, pages::reading(&name, &doing), pages::PLAIN_POLICY, takes)
        }
        Ok((_, Visit::Failed { failure, .. })) => {
            let page = pages::message(&failure.error, failure.hint.as_deref());
            answer::html(StatusCode::UNPROCESSABLE_ENTITY, page, pages::PLAIN_POLICY, takes)
        }
        Err(error) => answer::error(&error, takes),
    }
}

async fn list(State(library): Asked, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    respond(&headers, async |takes| {
        Query::read(query.as_deref(), &[])?;
        answer::json(StatusCode::OK, &library.list(), takes)
    })
    .await
}

async fn skew(State(library): Asked, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    respond(&headers, async |takes| {
        Query::read(query.as_deref(), &[])?;
        answer::json(StatusCode::OK, &library.skew(), takes)
    })
    .await
}

async fn page(
    State(library): Asked,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    respond(&headers, async |takes| {
        Query::read(query.as_deref(), &[])?;
        let held = library.hold(number(&id)?).await?;
        // Whoever looks at a recording will ask.
        library.whatif(&held);
        answer::compressed_json(held.loaded.page(held.device), takes)
    })
    .await
}

async fn moment(
    State(library): Asked,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    respond(&headers, async |takes| {
        let tick = Query::read(query.as_deref(), &["tick"])?.number("tick")?;
        let Held { loaded, device, .. } = library.hold(number(&id)?).await?;
        let answer = compute(move || loaded.moment(device, tick).map_err(Error::Ask)).await?;
        answer::compressed_json(answer, takes)
    })
    .await
}

async fn timeline(
    State(library): Asked,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    respond(&headers, async |takes| {
        let query = Query::read(query.as_deref(), &["from", "to", "points"])?;
        let (from, to) = (query.number("from")?, query.number("to")?);
        let points = query.optional("points").unwrap_or(POINTS);
        if from > to {
            return Err(Error::Query("`from` is after `to`".to_owned()));
        }
        if !(1..=MOST_POINTS).contains(&points) {
            return Err(Error::Query(format!("`points` must be from 1 to {MOST_POINTS}")));
        }
        let Held { loaded, device, .. } = library.hold(number(&id)?).await?;
        let answer = compute(move || {
            let last = loaded.last_tick(device);
            if to > last {
                return Err(Error::Ask(ExplainError::NoSuchTick { asked: to, last }));
            }
            Ok(loaded.timeline(device, from, to, points as usize))
        });
        answer::compressed_json(answer.await?, takes)
    })
    .await
}

async fn whatif_curves(
    State(library): Asked,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    #[derive(Serialize)]
    struct Progress {
        done: usize,
        of: usize,
    }
    respond(&headers, async |takes| {
        Query::read(query.as_deref(), &[])?;
        let held = library.hold(number(&id)?).await?;
        match library.whatif(&held) {
            whatif::Now::Running { done, of } => answer::json(StatusCode::ACCEPTED, &Progress { done, of }, takes),
            whatif::Now::Done(answer) => answer::compressed_json(answer, takes),
            whatif::Now::Failed(error) => Err(Error::Unreadable { error, hint: None }),
        }
    })
    .await
}

async fn diff(State(library): Asked, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    respond(&headers, async |takes| {
        let query = Query::read(query.as_deref(), &["a", "b"])?;
        // The first stays in memory while the second is read.
        let before = library.hold(query.number("a")?).await?;
        let after = library.hold(query.number("b")?).await?;
        let answer = compute(move || {
            let (one, other) = (&before, &after);
            Ok(Loaded::diff((&one.loaded, one.device), (&other.loaded, other.device)))
        });
        answer::compressed_json(answer.await?, takes)
    })
    .await
}

async fn respond(headers: &HeaderMap, make: impl AsyncFnOnce(Takes) -> Result<Response, Error>) -> Response {
    let takes = Takes::of(headers);
    make(takes).await.unwrap_or_else(|error| answer::error(&error, takes))
}

/// Makes an answer where it keeps nobody else waiting.
async fn compute<T: Serialize>(make: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<Bytes, Error> {
    let answer = move || {
        let answer = make()?;
        gpuheap_report::html::compressed(&answer).map(Bytes::from).map_err(|_| Error::Internal)
    };
    tokio::task::spawn_blocking(answer).await.unwrap_or(Err(Error::Internal))
}

/// The number of a recording. Anything else is no recording.
fn number(id: &str) -> Result<u32, Error> {
    let digits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    id.parse().ok().filter(|_| digits).ok_or(Error::NoRecording)
}
