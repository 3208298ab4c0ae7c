//! The web page: the work on the cluster, drawn by a browser from the tables; and metrics and probes for programs.
//!
//! Its files are part of the program and refer to nothing else, so the page works without a network. It reads, and cancels
//! jobs. Reports of models are separate pages, kept beside the models.

mod hosts;
mod metrics;
mod standby;

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use volley_proto::tables::Table;
use volley_proto::{ModelName, TrainId};

pub(crate) use hosts::{Hosts, check_host};

pub(crate) use self::standby::stand_by;
use crate::access::{AccessCounts, Caller};
use crate::tables::{Only, Tables};

/// Content security policy of the page: everything comes from here, and nothing is sent elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'";

/// Content security policy of reports: inline styles, and no scripts, whoever wrote the report.
const REPORT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                             form-action 'none'; sandbox";

/// Content type of scripts.
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Files of the page: path, type and content.
const FILES: [(&str, &str, &str); 10] = [
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/base.js", SCRIPT, include_str!("base.js")),
    ("/charts.js", SCRIPT, include_str!("charts.js")),
    ("/executors.js", SCRIPT, include_str!("executors.js")),
    ("/jobs.js", SCRIPT, include_str!("jobs.js")),
    ("/stages.js", SCRIPT, include_str!("stages.js")),
    ("/training.js", SCRIPT, include_str!("training.js")),
    ("/volley.js", SCRIPT, include_str!("volley.js")),
    (
        "/volley.css",
        "text/css; charset=utf-8",
        include_str!("volley.css"),
    ),
    ("/favicon.svg", "image/svg+xml", include_str!("favicon.svg")),
];

/// Builds the routes of the page and of the tables it reads.
pub(crate) fn routes(tables: Tables, counts: Arc<AccessCounts>) -> Router {
    let mut routes = Router::new();
    for (path, kind, text) in FILES {
        let file = move || async move {
            let headers = [
                (header::CONTENT_TYPE, kind),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                // A newer scheduler has a newer page.
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (headers, text)
        };
        routes = routes.route(path, get(file));
    }
    routes
        .route("/api/volley/{table}", get(rows))
        .route("/api/volley/jobs/{id}/cancel", post(cancel))
        .route("/reports/{model}/{version}/{train}", get(report))
        .route("/metrics", get(metrics::metrics))
        // A scheduler that answers is ready: it needs nothing else to accept jobs.
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }))
        .layer(Extension(counts))
        .with_state(tables)
}

/// Filter in the query string.
#[derive(Debug, Deserialize)]
struct Asked {
    job: Option<String>,
    train: Option<String>,
    executor: Option<String>,
    after: Option<u64>,
}

/// Returns a table as a JSON array of objects.
async fn rows(
    State(tables): State<Tables>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    let Ok(table) = name.parse::<Table>() else {
        let names = Table::ALL.map(Table::name).join(", ");
        let message = format!("no table {name:?}: there are {names}\n");
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    let Asked {
        job,
        train,
        executor,
        after,
    } = asked;
    let train = match train.map(|id| id.parse()).transpose() {
        Ok(train) => train,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let only = Only {
        job,
        train,
        executor,
        after,
        owner: caller.sees().map(str::to_owned),
    };
    match tables.read(table, &only).await {
        Ok(rows) => {
            let headers = [
                (header::CONTENT_TYPE, "application/json"),
                (header::CACHE_CONTROL, "no-store"),
            ];
            (headers, rows).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Cancels a job of the caller's; an administrator cancels any.
async fn cancel(
    State(tables): State<Tables>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let Some(owner) = tables.owner_of(&id) else {
        return (StatusCode::NOT_FOUND, format!("no job {id} is known\n")).into_response();
    };
    if let Err(refused) = caller.may_touch("cancel", &id, &owner) {
        let message = format!("{}\n", refused.message());
        return (StatusCode::FORBIDDEN, message).into_response();
    }
    caller.did("cancel", &id);
    tables.cancel(&id);
    StatusCode::NO_CONTENT.into_response()
}

/// Returns the report kept beside a version of a model.
async fn report(
    State(tables): State<Tables>,
    Path((model, version, train)): Path<(String, u32, String)>,
) -> Response {
    let found = match (model.parse::<ModelName>(), train.parse::<TrainId>()) {
        (Ok(model), Ok(train)) => tables.report(&model, version, train).await,
        _ => None,
    };
    match found {
        Some(html) => {
            let headers = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, REPORT_POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (headers, html).into_response()
        }
        None => {
            let message =
                "no report is kept of this version: volley report MODEL --publish keeps one\n";
            (StatusCode::NOT_FOUND, message).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PAGE;

    #[test]
    fn files_of_the_page_need_no_token() {
        for (path, ..) in FILES {
            assert!(PAGE.contains(&path), "{path}");
        }
    }
}
