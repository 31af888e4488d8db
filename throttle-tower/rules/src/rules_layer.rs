//! Makes a layer of the limits of a file, and reports what is wrong with it where the file says it.

use std::ops::Range;

use throttle_core::{Backend, ConfigError};
use throttle_tower::{ThrottleBuilder, ThrottleLayer};

use super::any_layer::find_layer;
use super::file_value;
use super::handle::Handle;
use super::problem::{Problems, RulesError};
use super::rules::Rules;

impl Rules {
    /// Makes a layer that enforces the limits on a backend, and a handle that replaces them while
    /// requests run, in the layer, its clones and its services. For a layer with settings or
    /// observers of the program, see [`layer_with`](Self::layer_with).
    ///
    /// A program that never replaces its limits can drop the handle. A handle keeps neither the
    /// layer nor its backend.
    ///
    /// # Errors
    ///
    /// If the backend can fail and a limit has no `on-error`, or if the backend refuses a limit.
    pub fn layer<B: Backend>(&self, backend: B) -> Result<(ThrottleLayer<B>, Handle), RulesError> {
        self.layer_with(ThrottleLayer::builder(()).backend(backend))
    }

    /// Makes what [`layer`](Self::layer) makes, with what the program sets: its backend, its
    /// observers and its settings. What the program sets goes before what the file says of the
    /// layer, now and when the file changes. The limits are those of the file, whatever limits the
    /// builder has.
    ///
    /// ```
    /// use throttle_rules::{Registry, Rules};
    /// use throttle_tower::{Dialect, ThrottleLayer};
    ///
    /// let text = "version = 1\nlimit = []\n[layer]\nheaders = \"none\"\nretry-jitter = 20";
    /// let rules = Rules::from_str("throttle.toml", text, Registry::new())?;
    /// // With these headers and the jitter of the file.
    /// let program = ThrottleLayer::builder(()).headers(Dialect::Draft07);
    /// let (throttle, handle) = rules.layer_with(program)?;
    /// # let _ = (throttle, handle);
    /// # Ok::<(), throttle_rules::RulesError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the backend can fail and neither a limit nor the program says what happens then, or if
    /// the backend refuses a limit.
    pub fn layer_with<B: Backend>(
        &self,
        program: ThrottleBuilder<B>,
    ) -> Result<(ThrottleLayer<B>, Handle), RulesError> {
        let builder = program.clone().or(self.document.builder());
        let layer = builder.limits(self.tree()).build();
        let layer = layer.map_err(|error| self.error(&error))?;
        let find_layer = find_layer(&layer, program);
        Ok((layer, Handle::new(self.clone(), find_layer)))
    }

    /// The limits that do not say what happens while a store fails.
    fn without_on_error(&self) -> RulesError {
        let problems = Problems::default();
        for limit in self
            .document
            .limits
            .iter()
            .filter(|limit| limit.needs_on_error)
        {
            let message = format!(
                "{}: on-error is missing: the backend can fail, and there is no silent default; \
                    write on-error = \
                 \"local/4\" (4 processes share the limit), \"open\" or \"closed\", here or under \
                 [defaults]",
                limit.owner
            );
            problems.add(Some(limit.span.clone()), message);
        }
        problems.into_error(&self.file, &self.text)
    }

    /// An error of a layer, at the limit that it is about.
    pub(super) fn error(&self, error: &ConfigError) -> RulesError {
        if error.field() == "on_error" {
            return self.without_on_error();
        }
        let Some(limit) = error.policy().and_then(|name| self.limit(name)) else {
            return self.problem(None, error.to_string());
        };
        let message = format!("{}: {}", limit.owner, file_value::without_policy(error));
        self.problem(Some(limit.span.clone()), message)
    }

    fn problem(&self, span: Option<Range<usize>>, message: String) -> RulesError {
        let problems = Problems::default();
        problems.add(span, message);
        problems.into_error(&self.file, &self.text)
    }
}
