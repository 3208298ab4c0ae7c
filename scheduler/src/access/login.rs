//! The web page's login: a form that takes a token, and a cookie that stands for it.
//!
//! The cookie is 256 random bits, sent back by the browser to this site only, and hidden from scripts. The scheduler
//! keeps its hash, and the token's hash or the content of a JSON Web Token. A login ends with its token, after half a
//! day, and with the scheduler.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde::Deserialize;
use volley_proto::access::{Role, Token, TokenHash};

use super::{Access, Credential, Known, Outcome, audit};

/// Duration of a login.
const LASTS: Duration = Duration::from_secs(12 * 60 * 60);
/// Largest number of logins at once; the oldest is removed first.
const KEPT: usize = 1024;
/// Number of wrong tokens that an address may try within [`WINDOW`].
const TRIES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Number of addresses whose tries are counted.
const COUNTED: usize = 4096;

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Logins of the web page.
#[derive(Debug, Default)]
pub(super) struct Logins {
    /// Port in the cookie's name, because browsers share a host's cookies between ports.
    port: u16,
    /// TLS flag: with it, browsers send the cookie over TLS only.
    tls: bool,
    sessions: Mutex<HashMap<TokenHash, Session>>,
    tries: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

#[derive(Debug)]
struct Session {
    credential: Credential,
    since: Instant,
}

impl Logins {
    pub(super) fn at(port: u16, tls: bool) -> Self {
        Self {
            port,
            tls,
            ..Self::default()
        }
    }

    fn secure(&self) -> &'static str {
        if self.tls { "; Secure" } else { "" }
    }

    fn cookie(&self) -> String {
        format!("volley_session_{}", self.port)
    }

    /// Returns the credential of a login; [`Access`] decides whether it is still valid.
    pub(super) fn credential(&self, headers: &HeaderMap) -> Option<Credential> {
        let session = self.session(headers)?;
        let sessions = self.sessions.lock();
        let session = sessions.get(&session)?;
        (session.since.elapsed() < LASTS).then(|| session.credential.clone())
    }

    fn session(&self, headers: &HeaderMap) -> Option<TokenHash> {
        let name = self.cookie();
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let cookies = cookies.filter_map(|header| header.to_str().ok());
        let mut cookies = cookies.flat_map(|header| header.split(';'));
        let value = cookies.find_map(|cookie| {
            let (of, value) = cookie.trim().split_once('=')?;
            (of == name).then_some(value)
        })?;
        Some(value.parse::<Token>().ok()?.hash())
    }

    /// Begins a login. Returns a header that sets its cookie.
    fn begin(&self, credential: Credential) -> String {
        let cookie = Token::generate();
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, session| session.since.elapsed() < LASTS);
        if sessions.len() >= KEPT {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.since);
            if let Some(oldest) = oldest.map(|(cookie, _)| *cookie) {
                sessions.remove(&oldest);
            }
        }
        let since = Instant::now();
        sessions.insert(cookie.hash(), Session { credential, since });
        let (name, value, seconds) = (self.cookie(), cookie.reveal(), LASTS.as_secs());
        let secure = self.secure();
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }

    /// Ends a login. Returns a header that removes its cookie.
    fn end(&self, headers: &HeaderMap) -> String {
        if let Some(session) = self.session(headers) {
            self.sessions.lock().remove(&session);
        }
        format!(
            "{}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{}",
            self.cookie(),
            self.secure()
        )
    }

    /// Checks whether an address may try another token.
    fn may_try(&self, from: IpAddr, now: Instant) -> bool {
        let tries = self.tries.lock();
        let tried = tries.get(&from);
        tried.is_none_or(|(since, count)| {
            now.saturating_duration_since(*since) > WINDOW || *count < TRIES
        })
    }

    /// Counts a wrong token from an address.
    fn failed(&self, from: IpAddr, now: Instant) {
        let mut tries = self.tries.lock();
        let is_recent = |since: &Instant| now.saturating_duration_since(*since) <= WINDOW;
        if tries.len() >= COUNTED {
            tries.retain(|_, (since, _)| is_recent(since));
        }
        if tries.len() >= COUNTED && !tries.contains_key(&from) {
            // So many addresses at once are not people who mistype.
            return;
        }
        let (since, count) = tries.entry(from).or_insert((now, 0));
        if !is_recent(since) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
    }
}

/// Builds the routes of the form and of its actions.
pub(crate) fn routes(access: Arc<Access>) -> Router {
    Router::new()
        .route("/login", get(form).post(login))
        .route("/logout", post(logout))
        .with_state(access)
}

#[derive(Deserialize)]
struct Shown {
    token: String,
}

async fn form(State(access): State<Arc<Access>>) -> Response {
    page(StatusCode::OK, "", access.hint())
}

async fn login(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Form(Shown { token }): Form<Shown>,
) -> Response {
    let now = Instant::now();
    let refuse = |code: StatusCode, reason: &str| {
        audit(None, Some(peer), ("login", "/"), Outcome::Refused(reason));
        access.counts.refused_logins.add(1);
        page(code, reason, access.hint())
    };
    if !access.logins.may_try(peer.ip(), now) {
        let reason = "too many wrong tokens came from this address: wait a minute";
        return refuse(StatusCode::TOO_MANY_REQUESTS, reason);
    }
    let known = access.recognize(token.trim()).await.ok();
    let Some((credential, who)) = known.filter(|(_, who)| who.role != Role::Executor) else {
        access.logins.failed(peer.ip(), now);
        return refuse(
            StatusCode::UNAUTHORIZED,
            "This scheduler does not know that token.",
        );
    };
    audit(Some(&who), Some(peer), ("login", "/"), Outcome::Done);
    access.counts.logins.add(1);
    let cookie = [(header::SET_COOKIE, access.logins.begin(credential))];
    (cookie, Redirect::to("/")).into_response()
}

async fn logout(State(access): State<Arc<Access>>, headers: HeaderMap) -> Response {
    let cookie = [(header::SET_COOKIE, access.logins.end(&headers))];
    (cookie, Redirect::to("/login")).into_response()
}

impl Access {
    /// Returns where a user gets a token from, as HTML.
    fn hint(&self) -> &'static str {
        match self.known {
            Known::File(_) => "Ask your administrator for a token.",
            Known::Local { .. } | Known::Anybody => {
                "<code>volley cluster token --scheduler HOST:PORT</code> shows the token of a scheduler that you have \
                 started on this machine."
            }
        }
    }
}

/// Returns the form with a notice, if there is one, and a hint.
fn html(said: &str, hint: &str) -> String {
    let said = match said {
        "" => String::new(),
        said => format!("<p class=\"notice\" role=\"alert\">{said}</p>"),
    };
    let form = include_str!("login.html").replace("<!-- said -->", &said);
    form.replace("<!-- hint -->", hint)
}

fn page(code: StatusCode, said: &str, hint: &str) -> Response {
    let html = html(said, hint);
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (code, headers, html).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_credential() -> Credential {
        Credential::Token(Token::generate().hash())
    }

    fn with_cookie(set: &str) -> HeaderMap {
        let pair = set.split(';').next().unwrap();
        let header = format!("other=1; {pair}");
        HeaderMap::from_iter([(header::COOKIE, header.parse().unwrap())])
    }

    #[test]
    fn the_form_has_its_notice_and_its_hint() {
        let form = html("no", "ask");
        assert!(
            form.contains(">no</p>") && form.contains("<p class=\"quiet\">ask</p>"),
            "{form}"
        );
        assert!(!form.contains("<!--"), "{form}");
        assert!(!html("", "ask").contains("alert"));
    }

    #[test]
    fn a_cookie_stands_for_the_token_until_it_is_given_back() {
        let logins = Logins::at(50050, false);
        let token = new_credential();
        let set = logins.begin(token.clone());
        for part in ["volley_session_50050=", "HttpOnly", "SameSite=Strict"] {
            assert!(set.contains(part), "{set}");
        }
        let headers = with_cookie(&set);
        assert_eq!(logins.credential(&headers), Some(token));
        assert_eq!(
            Logins::at(50050, false).credential(&headers),
            None,
            "another scheduler"
        );
        logins.end(&headers);
        assert_eq!(logins.credential(&headers), None);
        assert_eq!(logins.credential(&HeaderMap::new()), None);
    }

    #[test]
    fn logins_are_bounded() {
        let logins = Logins::at(1, true);
        let first = logins.begin(new_credential());
        for _ in 0..KEPT {
            logins.begin(new_credential());
        }
        assert_eq!(logins.sessions.lock().len(), KEPT);
        assert_eq!(logins.credential(&with_cookie(&first)), None);
    }

    #[test]
    fn wrong_tokens_are_tried_a_few_times_a_minute() {
        let (logins, start) = (Logins::at(1, true), Instant::now());
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        for _ in 0..TRIES {
            assert!(logins.may_try(one, start));
            logins.failed(one, start);
        }
        assert!(!logins.may_try(one, start) && logins.may_try(other, start));
        let later = start + WINDOW + Duration::from_secs(1);
        assert!(logins.may_try(one, later));
        logins.failed(one, later);
        assert!(logins.may_try(one, later), "counted anew");
    }
}
