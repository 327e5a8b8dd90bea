//! What every request must keep to, and what every answer says.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::access::Access;
use crate::answer::{self, Takes};
use crate::error::Error;
use crate::pages;

/// The longest path with its question.
const LONGEST: usize = 1024;

/// Headers of every answer.
const HEADERS: [(&str, &str); 6] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// Lets through what may be answered.
pub(crate) async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let takes = Takes::of(request.headers());
    let mut answer = match check(&access, &request) {
        Ok(Pass::Answer) => next.run(request).await,
        Ok(Pass::Remember) => remember(&access),
        Err(error) => answer::error(&error, takes),
    };
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let policy = header::CONTENT_SECURITY_POLICY;
    headers.entry(policy).or_insert(HeaderValue::from_static(pages::NO_PAGE_POLICY));
    answer
}

/// What a request gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pass {
    /// Its answer.
    Answer,
    /// A cookie, for the token that it came with.
    Remember,
}

fn check(access: &Access, request: &Request) -> Result<Pass, Error> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Error::Method);
    }
    let uri = request.uri();
    if uri.path_and_query().is_some_and(|text| text.as_str().len() > LONGEST) {
        return Err(Error::TooLong);
    }
    let headers = request.headers();
    let host = only(headers, &header::HOST).ok_or(Error::Host)?;
    if !access.is_own_host(host) || uri.authority().is_some_and(|named| !access.is_own_host(named.as_str())) {
        return Err(Error::Host);
    }
    if !is_own_origin(headers, host) {
        return Err(Error::Origin);
    }
    if !access.has_token() {
        return Ok(Pass::Answer);
    }
    let given = uri.query().and_then(|query| query.strip_prefix("token="));
    match given {
        Some(token) if access.is_token(token) => Ok(Pass::Remember),
        None if cookies(headers, &access.cookie()).any(|token| access.is_token(token)) => Ok(Pass::Answer),
        _ => Err(Error::Token),
    }
}

/// The header's value, if it is there once and is text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Whether no other page sent the request. Browsers say who did; other programs say nothing and could say anything.
fn is_own_origin(headers: &HeaderMap, host: &str) -> bool {
    let site = headers.get_all("sec-fetch-site").iter().all(|site| site == "same-origin" || site == "none");
    let own = format!("http://{host}");
    let origin =
        headers.get_all(header::ORIGIN).iter().all(|origin| origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()));
    site && origin
}

fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';')).filter_map(move |part| part.trim().strip_prefix(name)?.strip_prefix('='))
}

fn remember(access: &Access) -> Response {
    let mut answer = answer::redirect("/");
    if let Some(cookie) = access.set_cookie().and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}
