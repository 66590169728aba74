//! Settings: the addresses, folders, secrets and times of a [`Hub`](crate::Hub).

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper::{Uri, header::HeaderValue};

use crate::{Error, file::read_bounded};

/// The most bytes of a file that holds a token.
const TOKEN_BYTES_MAX: u64 = 64 << 10;
const PUBLIC_ENDPOINT: &str = "https://huggingface.co";

/// The settings of a [`Hub`](crate::Hub).
#[derive(Clone)]
pub struct HubConfig {
    /// The address of the Hub, without a slash at its end.
    pub endpoint: String,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// The secret that is sent to the endpoint, and to no other server.
    pub token: Option<String>,
    /// True if no connection may be opened.
    pub offline: bool,
    /// The proxies in between.
    pub proxies: Proxies,
    /// A PEM file of the authorities that certify servers, in place of the system's.
    pub authorities: Option<PathBuf>,
    /// Bounds of every wait.
    pub timing: Timing,
}

/// Proxies, in the form of the environment variables of the same names; empty for none.
#[derive(Clone, Default)]
pub struct Proxies {
    /// `HTTP_PROXY`: for servers without encryption.
    pub http: String,
    /// `HTTPS_PROXY`: for servers with encryption.
    pub https: String,
    /// `ALL_PROXY`: for both.
    pub all: String,
    /// `NO_PROXY`: hosts that are reached directly.
    pub no: String,
}

/// Bounds of every wait. The defaults suit slow networks.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Longest time until a connection is made.
    pub connect: Duration,
    /// Longest time until an answer begins, and between two of its parts.
    pub read: Duration,
    /// Time before the first further attempt; it doubles with each, up to a minute.
    pub retry: Duration,
    /// Longest time that another process's download of a file is waited for without growth.
    pub lock: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            retry: Duration::from_secs(1),
            lock: Duration::from_secs(300),
        }
    }
}

impl fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubConfig")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "secret"))
            .field("offline", &self.offline)
            .field("proxies", &self.proxies)
            .field("authorities", &self.authorities)
            .field("timing", &self.timing)
            .finish()
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses of proxies may hold passwords.
        f.write_str("Proxies")
    }
}

impl HubConfig {
    /// Reads the environment variables that Python's library reads: `HF_ENDPOINT`, `HF_HOME`,
    /// `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`,
    /// `XDG_CACHE_HOME`, `SSL_CERT_FILE`, those of proxies, and the older names of these. `variable` returns the
    /// value of one; an empty value counts as none.
    ///
    /// # Errors
    /// [`Error::Config`] with the variable; [`Error::Io`] if the file of the token cannot be read.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let variables = Variables(&variable);
        let home = variables.hub_home()?;
        let cache = variables.path(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])?;
        let cache = match (cache, &home) {
            (Some(cache), _) => cache,
            (None, Some(home)) => home.join("hub"),
            (None, None) => {
                return Err(Error::Config {
                    name: "HF_HOME",
                    why: "neither it nor HOME is set; set HF_HOME to a folder for downloads"
                        .to_owned(),
                });
            }
        };
        let endpoint = variables.text(&["HF_ENDPOINT"])?;
        let endpoint = endpoint.map_or_else(|| Ok(PUBLIC_ENDPOINT.to_owned()), checked_endpoint)?;
        let proxy = |upper, lower| -> Result<String, Error> {
            Ok(variables.text(&[upper, lower])?.unwrap_or_default())
        };
        Ok(Self {
            endpoint,
            cache,
            token: variables.token(home.as_deref())?,
            offline: variables.flag(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])?,
            proxies: Proxies {
                http: proxy("HTTP_PROXY", "http_proxy")?,
                https: proxy("HTTPS_PROXY", "https_proxy")?,
                all: proxy("ALL_PROXY", "all_proxy")?,
                no: proxy("NO_PROXY", "no_proxy")?,
            },
            authorities: variables.path(&["SSL_CERT_FILE"])?,
            timing: Timing::default(),
        })
    }
}

/// The environment, through a function so that tests have their own.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    /// Returns the first of these variables that is set to something.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, OsString)> {
        let filled = |name: &&'static str| {
            let value = (self.0)(name).filter(|value| !value.is_empty())?;
            Some((*name, value))
        };
        names.iter().find_map(filled)
    }

    fn text(&self, names: &[&'static str]) -> Result<Option<String>, Error> {
        let Some((name, value)) = self.first(names) else {
            return Ok(None);
        };
        let text = value.into_string().map_err(|_| Error::Config {
            name,
            why: "it is not UTF-8".to_owned(),
        })?;
        Ok(Some(text))
    }

    /// Returns the value as a path, with the home folder in place of `~`.
    fn path(&self, names: &[&'static str]) -> Result<Option<PathBuf>, Error> {
        let Some((name, value)) = self.first(names) else {
            return Ok(None);
        };
        let path = PathBuf::from(value);
        let Ok(rest) = path.strip_prefix("~") else {
            return Ok(Some(path));
        };
        match self.first(&["HOME"]) {
            Some((_, home)) => Ok(Some(Path::new(&home).join(rest))),
            None => Err(Error::Config {
                name,
                why: "it begins with `~`, and HOME is not set".to_owned(),
            }),
        }
    }

    fn flag(&self, names: &[&'static str]) -> Result<bool, Error> {
        let value = self.text(names)?.unwrap_or_default();
        let is = |word: &&str| value.eq_ignore_ascii_case(word);
        Ok(["1", "on", "yes", "true"].iter().any(is))
    }

    /// Returns the folder that has the cache and the token in it.
    fn hub_home(&self) -> Result<Option<PathBuf>, Error> {
        if let Some(home) = self.path(&["HF_HOME"])? {
            return Ok(Some(home));
        }
        if let Some(caches) = self.path(&["XDG_CACHE_HOME"])? {
            return Ok(Some(caches.join("huggingface")));
        }
        let home = self.path(&["HOME"])?;
        Ok(home.map(|home| home.join(".cache/huggingface")))
    }

    fn token(&self, home: Option<&Path>) -> Result<Option<String>, Error> {
        if self.flag(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"])? {
            return Ok(None);
        }
        let (name, text) = match self.text(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])? {
            Some(text) => ("HF_TOKEN", text),
            None => {
                let path = self.path(&["HF_TOKEN_PATH"])?;
                let path = path.or_else(|| home.map(|home| home.join("token")));
                let Some(path) = path else { return Ok(None) };
                let text = read_bounded(&path, TOKEN_BYTES_MAX)
                    .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
                match text {
                    Ok(text) => ("HF_TOKEN_PATH", text),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(source) => return Err(Error::Io { path, source }),
                }
            }
        };
        let token = text.trim();
        if token.is_empty() {
            return Ok(None);
        }
        if HeaderValue::from_str(token).is_err() || !token.is_ascii() {
            let why = "the token holds characters that no token has".to_owned();
            return Err(Error::Config { name, why });
        }
        Ok(Some(token.to_owned()))
    }
}

/// Returns the endpoint without slashes at its end.
fn checked_endpoint(text: String) -> Result<String, Error> {
    let endpoint = text.trim_end_matches('/');
    let is_usable = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|a| !a.as_str().contains('@'))
            && uri.query().is_none()
    };
    match endpoint.parse::<Uri>() {
        Ok(uri) if is_usable(&uri) => Ok(endpoint.to_owned()),
        _ => Err(Error::Config {
            name: "HF_ENDPOINT",
            why: format!("{text:?} is not an address such as {PUBLIC_ENDPOINT}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<HubConfig, Error> {
        HubConfig::from_variables(|name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn folders_are_those_of_the_python_library() {
        let check = |variables: &[(&str, &str)], expected: &str| {
            assert_eq!(
                read(variables).unwrap().cache,
                Path::new(expected),
                "{variables:?}"
            );
        };
        check(&[("HOME", "/h")], "/h/.cache/huggingface/hub");
        check(
            &[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")],
            "/c/huggingface/hub",
        );
        check(
            &[("HOME", "/h"), ("XDG_CACHE_HOME", "")],
            "/h/.cache/huggingface/hub",
        );
        check(&[("HOME", "/h"), ("HF_HOME", "~/x")], "/h/x/hub");
        check(&[("HF_HOME", "/x"), ("HF_HUB_CACHE", "/y")], "/y");
        check(&[("HUGGINGFACE_HUB_CACHE", "/z")], "/z");
        let error = read(&[]).unwrap_err().to_string();
        assert!(error.contains("set HF_HOME"), "{error}");
    }

    #[test]
    fn endpoints_and_flags() {
        let of = |endpoint| read(&[("HOME", "/h"), ("HF_ENDPOINT", endpoint)]).map(|c| c.endpoint);
        assert_eq!(of("").unwrap(), "https://huggingface.co");
        assert_eq!(
            of("https://mirror.example/hf/").unwrap(),
            "https://mirror.example/hf"
        );
        for wrong in [
            "mirror.example",
            "ftp://a",
            "https://",
            "http://u:p@a",
            "http://a/?b",
        ] {
            assert!(matches!(of(wrong), Err(Error::Config { .. })), "{wrong}");
        }
        let offline = |value| {
            read(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)])
                .unwrap()
                .offline
        };
        for (value, expected) in [
            ("1", true),
            ("yes", true),
            ("True", true),
            ("0", false),
            ("", false),
        ] {
            assert_eq!(offline(value), expected, "{value}");
        }
    }

    #[test]
    fn tokens_come_from_variables_or_a_file_and_are_not_shown() {
        let folder = std::env::temp_dir().join(format!("prelude-hub-token-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("token"), "hf_file\n").unwrap();
        let home = folder.to_str().unwrap();
        let token = |more: &[(&str, &str)]| {
            let variables = [&[("HF_HOME", home)], more].concat();
            read(&variables).unwrap().token
        };
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(
            token(&[("HF_TOKEN", " hf_env ")]).as_deref(),
            Some("hf_env")
        );
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[("HF_TOKEN_PATH", "/no/such/file")]), None);
        let config = read(&[("HF_HOME", home), ("HF_TOKEN", "hf_env")]).unwrap();
        assert!(!format!("{config:?}").contains("hf_env"));
        assert!(read(&[("HF_HOME", home), ("HF_TOKEN", "a\nb")]).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
