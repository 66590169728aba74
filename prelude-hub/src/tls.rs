//! Encrypted connections: rustls with the system's certificates and a provider of cryptography that
//! needs no C compiler.
//!
//! The usual providers, `ring` and `aws-lc-rs`, compile C. Prelude promises to build with a Rust
//! toolchain alone, so it takes `graviola`, by rustls's own maintainer: assembly with formal proofs
//! inside Rust source. Its price is that processors older than about 2014 cannot use it.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::CryptoProvider};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use crate::{Error, HubConfig};

/// Returns the configuration of a client's encrypted connections. Where the endpoint is not
/// encrypted, missing certificates are no error: each encrypted connection then fails by itself.
///
/// # Errors
/// [`Error::Tls`].
pub(crate) fn client(config: &HubConfig) -> Result<ClientConfig, Error> {
    let loaded = match &config.authorities {
        Some(file) => load_certs_from_paths(Some(file), None),
        None => load_native_certs(),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if config.endpoint.starts_with("https") && roots.is_empty() {
        let why = loaded.errors.first();
        let why = why.map_or_else(String::new, |e| format!(" ({e})"));
        return Err(Error::Tls(format!(
            "there are no certificates of authorities{why}; install the package ca-certificates, or set SSL_CERT_FILE"
        )));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()?));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| Error::Tls(e.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn provider() -> Result<CryptoProvider, Error> {
    match missing_feature() {
        None => Ok(rustls_graviola::default_provider()),
        Some(feature) => Err(Error::Tls(format!(
            "this processor lacks `{feature}`; download the model on another machine and give its folder"
        ))),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn provider() -> Result<CryptoProvider, Error> {
    let message = "this kind of processor is not supported; download the model on another machine and give its folder";
    Err(Error::Tls(message.to_owned()))
}

/// Returns the first instruction set that the provider needs and this processor lacks. The provider
/// would end the program.
#[cfg(target_arch = "x86_64")]
fn missing_feature() -> Option<&'static str> {
    let features = [
        ("aes", is_x86_feature_detected!("aes")),
        ("ssse3", is_x86_feature_detected!("ssse3")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi1", is_x86_feature_detected!("bmi1")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("adx", is_x86_feature_detected!("adx")),
    ];
    features
        .into_iter()
        .find(|(_, has)| !has)
        .map(|(name, _)| name)
}

/// Returns the first instruction set that the provider needs and this processor lacks. The provider
/// would end the program.
#[cfg(target_arch = "aarch64")]
fn missing_feature() -> Option<&'static str> {
    use std::arch::is_aarch64_feature_detected;
    let features = [
        ("neon", is_aarch64_feature_detected!("neon")),
        ("aes", is_aarch64_feature_detected!("aes")),
        ("pmull", is_aarch64_feature_detected!("pmull")),
        ("sha2", is_aarch64_feature_detected!("sha2")),
    ];
    features
        .into_iter()
        .find(|(_, has)| !has)
        .map(|(name, _)| name)
}
