//! Answers: compressed where the browser takes that, errors as JSON or as a page.

use std::io::{Read, Write};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::Serialize;

use crate::error::Error;
use crate::pages;

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
/// Texts shorter than this are sent as they are.
const WORTH: usize = 1024;

/// What the asker takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Takes {
    gzip: bool,
    html: bool,
}

impl Takes {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let has = |name, token| headers.get_all(name).iter().any(|value| lists(value, token));
        Self { gzip: has(header::ACCEPT_ENCODING, "gzip"), html: has(header::ACCEPT, "text/html") }
    }
}

/// Whether a header's list has the token, and does not refuse it.
fn lists(value: &HeaderValue, token: &str) -> bool {
    let Ok(text) = value.to_str() else { return false };
    text.split(',').any(|part| {
        let mut parameters = part.split(';').map(str::trim);
        let named = parameters.next().is_some_and(|name| name.eq_ignore_ascii_case(token));
        let refused = |parameter: &str| {
            let quality = parameter.strip_prefix("q=").and_then(|quality| quality.parse::<f32>().ok());
            quality.is_some_and(|quality| quality <= 0.0)
        };
        named && !parameters.any(refused)
    })
}

/// JSON that is compressed already.
pub(crate) fn compressed_json(gzip: Bytes, takes: Takes) -> Result<Response, Error> {
    if takes.gzip {
        return Ok(response(StatusCode::OK, JSON, gzip, true));
    }
    let mut plain = Vec::new();
    GzDecoder::new(&gzip[..]).read_to_end(&mut plain).map_err(|_| Error::Internal)?;
    Ok(response(StatusCode::OK, JSON, plain.into(), false))
}

/// Any value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize, takes: Takes) -> Result<Response, Error> {
    let text = serde_json::to_vec(value).map_err(|_| Error::Internal)?;
    Ok(plain(status, JSON, text, takes))
}

/// A page, with the content security policy that it needs.
pub(crate) fn html(status: StatusCode, text: String, policy: &str, takes: Takes) -> Response {
    let mut answer = plain(status, HTML, text.into_bytes(), takes);
    if let Ok(policy) = HeaderValue::from_str(policy) {
        answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

/// An error: as a page for people, as JSON for programs.
pub(crate) fn error(error: &Error, takes: Takes) -> Response {
    #[derive(Serialize)]
    struct Body {
        error: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    }
    let status = error.status();
    let body = Body { error: error.to_string(), hint: error.hint() };
    let mut answer = if takes.html {
        html(status, pages::message(&body.error, body.hint.as_deref()), pages::PLAIN_POLICY, takes)
    } else {
        json(status, &body, takes).unwrap_or_else(|_| response(status, JSON, Bytes::from_static(b"{}"), false))
    };
    if let Some(after) = error.retry_after() {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs()));
    }
    if matches!(error, Error::Method) {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

/// Sends the browser to another page of this server.
pub(crate) fn redirect(path: &str) -> Response {
    let mut answer = response(StatusCode::SEE_OTHER, HTML, Bytes::new(), false);
    if let Ok(path) = HeaderValue::from_str(path) {
        answer.headers_mut().insert(header::LOCATION, path);
    }
    answer
}

/// An answer without a body.
pub(crate) fn nothing() -> Response {
    response(StatusCode::NO_CONTENT, HTML, Bytes::new(), false)
}

fn plain(status: StatusCode, content: &'static str, text: Vec<u8>, takes: Takes) -> Response {
    if takes.gzip && text.len() >= WORTH {
        let mut writer = GzEncoder::new(Vec::new(), Compression::new(6));
        if let Ok(gzip) = writer.write_all(&text).and_then(|()| writer.finish()) {
            return response(status, content, gzip.into(), true);
        }
    }
    response(status, content, text.into(), false)
}

fn response(status: StatusCode, content: &'static str, body: Bytes, gzip: bool) -> Response {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_lists() {
        let has = |text: &str| lists(&HeaderValue::from_str(text).unwrap(), "gzip");
        assert!(has("gzip, deflate, br") && has("br;q=1.0, GZIP;q=0.5") && has("gzip"));
        assert!(!has("identity") && !has("gzip;q=0") && !has("br, gzip; q=0.0") && !has("x-gzip"));
    }
}
