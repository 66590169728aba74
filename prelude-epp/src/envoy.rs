//! A configuration of Envoy that asks a picker.

use std::fmt::Write as _;

use crate::endpoints::EndpointLine;

/// The file with places to fill in.
const TEMPLATE: &str = include_str!("envoy.yaml");

/// The settings of a configuration of Envoy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyConfig {
    /// The address at which clients connect, as `HOST:PORT`.
    pub listen: String,
    /// The address at which Envoy shows its state, as `HOST:PORT`.
    pub admin: String,
    /// The address at which the picker listens, as `HOST:PORT`.
    pub picker: String,
    /// The engines.
    pub endpoints: Vec<EndpointLine>,
    /// A name with the addresses of further engines, as `HOST:PORT`.
    pub dns: Vec<String>,
    /// The path of the engines' health checks.
    pub health_path: String,
    /// The picker sees the body of responses. Without it, streams survive the end of a picker and
    /// cost Envoy less, and the picker does not know when they end.
    pub sees_responses: bool,
}

impl EnvoyConfig {
    /// Prints the file.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let hosts = { self.endpoints.iter() }.map(|endpoint| &endpoint.address);
        let hosts: Vec<&String> = hosts.chain(&self.dns).collect();
        let is_named = |host: &&String| host.parse::<std::net::SocketAddr>().is_err();
        let discovery = match hosts.iter().any(is_named) {
            true => "STRICT_DNS",
            false => "STATIC",
        };
        let (response_body, response_trailers) = match self.sees_responses {
            true => ("FULL_DUPLEX_STREAMED", "SEND"),
            false => ("NONE", "SKIP"),
        };
        let mut text = TEMPLATE.to_owned();
        for (place, value) in [
            ("@LISTEN@", address(&self.listen, 6)),
            ("@ADMIN@", address(&self.admin, 4)),
            ("@PICKER@", endpoints(&[&self.picker])),
            ("@ENGINES@", endpoints(&hosts)),
            ("@DISCOVERY@", discovery.to_owned()),
            ("@PICKER_DISCOVERY@", self.picker_discovery().to_owned()),
            ("@HEALTH_PATH@", quoted(&self.health_path)),
            ("@RESPONSE_BODY@", response_body.to_owned()),
            ("@RESPONSE_TRAILERS@", response_trailers.to_owned()),
        ] {
            text = text.replace(place, &value);
        }
        text
    }

    fn picker_discovery(&self) -> &'static str {
        match self.picker.parse::<std::net::SocketAddr>() {
            Ok(_) => "STATIC",
            Err(_) => "STRICT_DNS",
        }
    }
}

/// Prints an address below a key that is indented by so many blanks.
fn address(host_port: &str, indent: usize) -> String {
    let (host, port) = host_port.rsplit_once(':').unwrap_or((host_port, "0"));
    let host = host.trim_matches(['[', ']']);
    let blanks = " ".repeat(indent);
    format!(
        "{blanks}socket_address:\n{blanks}  address: {}\n{blanks}  port_value: {port}",
        quoted(host)
    )
}

/// Prints the members of a cluster.
fn endpoints(hosts: &[&String]) -> String {
    let mut text = String::from("      - lb_endpoints:");
    if hosts.is_empty() {
        text.push_str(" []");
    }
    for host in hosts {
        let _ = write!(
            text,
            "\n        - endpoint:\n            address:\n{}",
            address(host, 14)
        );
    }
    text
}

/// Prints a string of YAML: JSON's strings are strings of YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EnvoyConfig {
        EnvoyConfig {
            listen: "0.0.0.0:8080".to_owned(),
            admin: "127.0.0.1:9901".to_owned(),
            picker: "127.0.0.1:9002".to_owned(),
            endpoints: vec!["10.0.0.1:8000".parse().unwrap()],
            dns: Vec::new(),
            health_path: "/health".to_owned(),
            sees_responses: true,
        }
    }

    #[test]
    fn places_are_filled_in() {
        let text = config().to_yaml();
        assert!(
            !text.contains('@') || text.matches('@').count() == text.matches("\"@type\"").count()
        );
        assert_eq!(text.matches("\"10.0.0.1\"\n").count(), 2, "{text}");
        assert!(text.contains("request_body_mode: FULL_DUPLEX_STREAMED"));
        assert!(text.contains("response_body_mode: FULL_DUPLEX_STREAMED"));
        assert_eq!(text.matches("type: STATIC").count(), 3);
    }

    #[test]
    fn choices_show() {
        let text = EnvoyConfig {
            sees_responses: false,
            dns: vec!["engines.local:8000".to_owned()],
            ..config()
        }
        .to_yaml();
        assert!(text.contains("response_body_mode: NONE"));
        assert!(text.contains("response_trailer_mode: SKIP"));
        assert_eq!(text.matches("type: STRICT_DNS").count(), 2);
        let none = EnvoyConfig {
            endpoints: Vec::new(),
            ..config()
        };
        assert_eq!(none.to_yaml().matches("lb_endpoints: []").count(), 2);
    }
}
