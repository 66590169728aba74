//! Traces as the standard variables of OpenTelemetry ask for them. Its library reads the variables
//! too; what it would pass over in silence is refused here.

use prelude_server::Traces;

use super::{Code, Failure, say};

/// The variables that name a collector. Without one there are no traces.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// The variables with a fixed set of values: the values that mean something here.
const CHOICES: [(&str, &[&str]); 6] = [
    ("OTEL_TRACES_EXPORTER", &["otlp", "none"]),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", &["http/protobuf"]),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", &["http/protobuf"]),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", &["none"]),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", &["none"]),
    (
        "OTEL_TRACES_SAMPLER",
        &[
            "always_on",
            "always_off",
            "traceidratio",
            "parentbased_always_on",
            "parentbased_always_off",
            "parentbased_traceidratio",
        ],
    ),
];

/// Starts to send traces, if `variables` name a collector.
///
/// # Errors
/// If a variable asks for something that this program does not do.
pub(crate) fn start(variables: &[(String, String)]) -> Result<Traces, Failure> {
    let endpoint = collector(variables)?;
    let Some(endpoint) = endpoint else {
        return Ok(Traces::default());
    };
    #[cfg(feature = "otlp")]
    {
        let traces = Traces::start().map_err(|e| Failure::new(Code::Usage, e))?;
        say(format_args!("traces go to {endpoint}"));
        Ok(traces)
    }
    #[cfg(not(feature = "otlp"))]
    {
        say(format_args!(
            "warning: no traces go to {endpoint}: this program was built without the feature otlp"
        ));
        Ok(Traces::default())
    }
}

/// Returns the address of the collector, if traces are wanted.
fn collector(variables: &[(String, String)]) -> Result<Option<&str>, Failure> {
    let value = |name: &str| {
        let found = variables.iter().find(|(n, _)| n == name);
        found
            .map(|(_, value)| value.trim())
            .filter(|v| !v.is_empty())
    };
    let is_off = value("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"))
        || value("OTEL_TRACES_EXPORTER") == Some("none");
    let endpoint = ENDPOINTS.iter().find_map(|name| Some((name, value(name)?)));
    let Some((name, endpoint)) = endpoint.filter(|_| !is_off) else {
        return Ok(None);
    };
    for (name, choices) in CHOICES {
        if let Some(value) = value(name)
            && !choices.contains(&value)
        {
            let message = format_args!(
                "{name}={value} is not supported; there is: {}",
                choices.join(", ")
            );
            return Err(Failure::new(Code::Usage, message));
        }
    }
    if !endpoint.starts_with("http://") {
        let message = format_args!(
            "{name}={endpoint} is not supported: give the http:// address of a collector on this \
             machine or in a trusted network, which may send on over TLS"
        );
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(Some(endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");

    fn found(variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let owned = variables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned()));
        let owned: Vec<_> = owned.collect();
        let found = collector(&owned).map_err(|failure| failure.to_string())?;
        Ok(found.map(str::to_owned))
    }

    #[test]
    fn a_collector_is_asked_for_by_its_address() {
        let check = |variables: &[_], expected: Option<&str>| {
            let found = found(variables).unwrap();
            assert_eq!(found.as_deref(), expected, "{variables:?}");
        };
        check(&[], None);
        check(&[("OTEL_SERVICE_NAME", "judge")], None);
        check(&[(AT.0, "")], None);
        check(&[AT], Some(AT.1));
        check(&[AT, ("OTEL_SDK_DISABLED", "True")], None);
        check(&[AT, ("OTEL_TRACES_EXPORTER", "none")], None);
        check(
            &[AT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")],
            Some(AT.1),
        );
        let nearer = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://here/traces");
        check(&[AT, nearer], Some(nearer.1));
    }

    #[test]
    fn variables_that_would_be_ignored_are_refused() {
        let check = |variable: (&str, &str)| {
            let refusal = found(&[AT, variable]).unwrap_err();
            assert!(refusal.contains(variable.0), "{refusal}");
        };
        check(("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"));
        check(("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"));
        check(("OTEL_TRACES_EXPORTER", "zipkin"));
        check(("OTEL_TRACES_SAMPLER", "xray"));
        check(("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://far"));
        check(("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"));
    }
}
