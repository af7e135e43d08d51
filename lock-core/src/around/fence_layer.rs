//! A tower layer that refuses requests with stale tokens (feature `tower`).

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::fence::{Fence, HTTP_HEADER, parse_header};
use crate::name::LockName;

/// Puts a [`Fence`] before a service that only this process writes through.
///
/// `name` says which lock protects what a request asks for, `None` for a request that needs no token. A request without a token,
/// with several, or with one that is no number, is answered 400; one whose token is smaller than one that was here, 409 with a sentence that names
/// both, and the header `Fencing-Token` with the newest. `GET`, `HEAD` and `OPTIONS` are compared without raising the watermark.
///
/// A request is compared when it arrives: one that is slow may still write after a later one with a larger token. Where that matters, the
/// service compares once more where it writes.
///
/// ```
/// # use onelock_core::{LockName, around::fence_layer::FenceLayer}; // onelock::fence::FenceLayer
/// let layer = FenceLayer::new(|request: &http::Request<String>| {
///     LockName::new(request.uri().path().trim_start_matches('/')).ok()
/// });
/// ```
#[derive(Clone, Debug)]
pub struct FenceLayer<F> {
    fence: Arc<Fence>,
    name: F,
}

impl<F> FenceLayer<F> {
    /// With watermarks of its own, which its clones and its services share.
    #[must_use]
    pub fn new(name: F) -> Self {
        Self { fence: Arc::new(Fence::in_process()), name }
    }
}

impl<S, F: Clone> Layer<S> for FenceLayer<F> {
    type Service = Fenced<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Fenced { inner, layer: self.clone() }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct Fenced<S, F> {
    inner: S,
    layer: FenceLayer<F>,
}

impl<S, F, B, R> Service<Request<B>> for Fenced<S, F>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send + 'static, Error: Send + 'static>,
    F: Fn(&Request<B>) -> Option<LockName>,
    R: From<String> + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.layer.admit(&request) {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(refusal) => Box::pin(ready(Ok(refusal))),
        }
    }
}

impl<F> FenceLayer<F> {
    fn admit<B, R: From<String>>(&self, request: &Request<B>) -> Result<(), Response<R>>
    where
        F: Fn(&Request<B>) -> Option<LockName>,
    {
        let Some(name) = (self.name)(request) else { return Ok(()) };
        let refusal = |status, text: String| {
            let mut refusal = Response::new(R::from(text));
            *refusal.status_mut() = status;
            refusal
        };
        let mut values = request.headers().get_all(HTTP_HEADER).iter();
        let token = match (values.next(), values.next()) {
            (Some(value), None) => parse_header(value.as_bytes()).map_err(|error| error.to_string()),
            _ => Err(format!("there must be one header `{HTTP_HEADER}`")),
        };
        let token = token.map_err(|text| refusal(StatusCode::BAD_REQUEST, text))?;
        let raise = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        self.fence.admit(&name, token, raise).map_err(|stale| {
            let mut refusal = refusal(StatusCode::CONFLICT, stale.to_string());
            refusal.headers_mut().insert("fencing-token", stale.newest.get().into());
            refusal
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::Ready;
    use std::sync::Mutex;

    use super::*;

    /// Keeps what was written last.
    #[derive(Clone, Default)]
    struct Store(Arc<Mutex<String>>);

    impl Service<Request<String>> for Store {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<String>) -> Self::Future {
            *self.0.lock().unwrap() = request.into_body();
            ready(Ok(Response::new("written".to_owned())))
        }
    }

    async fn put(
        service: &mut impl Service<Request<String>, Response = Response<String>, Error = Infallible>,
        method: Method,
        token: Option<&str>,
        value: &str,
    ) -> Response<String> {
        let mut request = Request::builder().method(method).uri("/printer");
        if let Some(token) = token {
            request = request.header(HTTP_HEADER, token);
        }
        service.call(request.body(value.to_owned()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() {
        let store = Store::default();
        let name = |request: &Request<String>| LockName::new(&request.uri().path()[1..]).ok();
        let mut fenced = FenceLayer::new(name).layer(store.clone());
        let now = || store.0.lock().unwrap().clone();
        assert_eq!(put(&mut fenced, Method::PUT, Some("8"), "later").await.status(), StatusCode::OK);
        let refused = put(&mut fenced, Method::PUT, Some("7"), "late").await;
        assert_eq!((refused.status(), now().as_str()), (StatusCode::CONFLICT, "later"));
        assert_eq!(refused.headers()[HTTP_HEADER], "8");
        assert!(refused.body().contains('7') && refused.body().contains('8'), "{}", refused.body());
        for (token, method) in [
            (None, Method::PUT),
            (Some("-1"), Method::PUT),
            (Some("+9"), Method::GET),
            (Some(""), Method::PUT),
        ] {
            assert_eq!(put(&mut fenced, method, token, "x").await.status(), StatusCode::BAD_REQUEST);
        }
        // Of two that differ a proxy or the service may read the other one.
        let twice = Request::put("/printer").header(HTTP_HEADER, "9").header(HTTP_HEADER, "7");
        let twice = fenced.call(twice.body("late".to_owned()).unwrap()).await.unwrap();
        assert_eq!((twice.status(), now().as_str()), (StatusCode::BAD_REQUEST, "later"));
        assert_eq!(put(&mut fenced, Method::GET, Some("9"), "later").await.status(), StatusCode::OK);
        assert_eq!(
            put(&mut fenced, Method::PUT, Some("8"), "later").await.status(),
            StatusCode::OK,
            "a reader raises nothing"
        );
        assert_eq!(put(&mut store.clone(), Method::PUT, Some("7"), "late").await.status(), StatusCode::OK);
        assert_eq!(now(), "late", "the twin without a fence");
    }
}
