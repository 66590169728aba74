//! The program's environment variables, which are read here and in `cli.rs` only.

use std::{env, ffi::OsString};

use crate::commands::{Code, Environment, Failure, Settings};

const PREFIX: &str = "PRELUDE_";

/// The variables that are not settings, without the prefix.
const KNOWN: [&str; 5] = ["API_KEY", "API_KEY_FILE", "CONFIG", "CUDA_LIBS", "LOG"];

/// The beginnings of variables for this project's builds and tests, which the program may inherit.
const FOREIGN: [&str; 10] = [
    "BLESS",
    "COMMIT",
    "EMU_",
    "FUZZ_",
    "KERNEL_IMAGES",
    "LOAD_TEST_",
    "PORTABLE_FIBRES",
    "REQUIRE_",
    "SHARED_TOKENIZERS",
    "TEST_",
];

/// Returns the value of a variable.
///
/// # Errors
/// If the variable is set but empty: a secret that a deployment failed to fill in must not open the
/// server to all clients.
pub(crate) fn filled(name: &str) -> Result<Option<OsString>, Failure> {
    let Some(value) = env::var_os(name) else {
        return Ok(None);
    };
    if value.to_str().is_some_and(|value| value.trim().is_empty()) {
        let message = format_args!("{name} is set but empty; unset it to serve without a key");
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(Some(value))
}

/// Reads the settings that all commands take from the environment.
///
/// # Errors
/// If a variable with the project's prefix is unknown or not UTF-8.
pub(crate) fn environment() -> Result<Environment, Failure> {
    let mut variables = Vec::new();
    for (name, value) in env::vars_os() {
        // Names of settings are ASCII, so a name that is not UTF-8 is another program's.
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        if rest.contains("__") {
            let value = value.into_string().map_err(|_| {
                Failure::new(Code::Usage, format_args!("{PREFIX}{rest} is not UTF-8"))
            })?;
            variables.push((rest.to_owned(), value));
        } else if !is_known(rest, &value.to_string_lossy()) {
            let nearest = nearest(rest);
            let message =
                format_args!("{PREFIX}{rest} is not a variable of this program; {nearest}");
            return Err(Failure::new(Code::Usage, message));
        }
    }
    // Sorted, so that the same environment gives the same message.
    variables.sort_unstable();
    let config = env::var_os("PRELUDE_CONFIG").filter(|path| !path.is_empty());
    Ok(Environment {
        config: config.map(Into::into),
        variables,
        otel: of_opentelemetry(),
    })
}

/// Returns the variables of OpenTelemetry. What is not UTF-8 in a value is replaced, and then refused
/// by whoever reads the value.
fn of_opentelemetry() -> Vec<(String, String)> {
    let all = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let named = all.filter(|(name, _)| name.starts_with("OTEL_"));
    let texts = named.map(|(name, value)| (name, value.to_string_lossy().into_owned()));
    texts.collect()
}

fn is_known(name: &str, value: &str) -> bool {
    let is_foreign = FOREIGN.iter().any(|foreign| name.starts_with(foreign));
    KNOWN.contains(&name) || is_foreign || is_of_kubernetes(name, value)
}

/// Returns whether Kubernetes sets this variable in every container beside a service named `prelude`:
/// `SERVICE_HOST`, `SERVICE_PORT…`, `PORT` with a URL, `PORT_8000_TCP…`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    match name.split_once("PORT") {
        Some(("", "")) => value.contains("://"),
        Some(("", rest)) => rest.starts_with('_'),
        Some(("SERVICE_", _)) => true,
        _ => name == "SERVICE_HOST",
    }
}

/// Returns a sentence that names the known variable with the most similar spelling.
fn nearest(name: &str) -> String {
    let mut names: Vec<String> = KNOWN.map(str::to_owned).to_vec();
    collect("", &mut names);
    // A part or an extension of a name is nearer than a different name of the same length.
    let by_distance = |known: &String| match known.contains(name) || name.contains(known.as_str()) {
        true => known.len().abs_diff(name.len()) / 2,
        false => strsim::damerau_levenshtein(name, known),
    };
    let nearest = names.into_iter().min_by_key(by_distance);
    let nearest = nearest.expect("the list of known names is not empty");
    format!("the nearest is {PREFIX}{nearest}, and settings are {PREFIX}<TABLE>__<FIELD>")
}

/// Adds the names of all settings below a table, those without a value included: serde lists the
/// fields of a table when it refuses an unknown one. Returns false if `table` is a setting itself.
fn collect(table: &str, names: &mut Vec<String>) -> bool {
    let text = match table {
        "" => "'?' = 0".to_owned(),
        table => format!("[{table}]\n'?' = 0"),
    };
    let refusal = toml::from_str::<Settings>(&text).err();
    let message = refusal.map(|e| e.message().to_owned()).unwrap_or_default();
    let Some(fields) = message.strip_prefix("unknown field `?`") else {
        return false;
    };
    // The text between the first and second back-tick, the third and fourth, and so on.
    for field in fields.split('`').skip(1).step_by(2) {
        let path = match table {
            "" => field.to_owned(),
            table => format!("{table}.{field}"),
        };
        if path == "models" {
            // Its tables have names that the user chooses.
            names.push("MODELS__<NAME>__MODEL".to_owned());
        } else if !collect(&path, names) {
            names.push(path.to_ascii_uppercase().replace('.', "__"));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let check = |name, expected: &str| {
            let found = nearest(name);
            let wanted = format!("the nearest is PRELUDE_{expected},");
            assert!(found.starts_with(&wanted), "{name}: {found}");
        };
        check("LIMITS_ROWS", "LIMITS__ROWS");
        check("APIKEY", "API_KEY");
        check("KEY", "API_KEY");
        check("API_KEYFILE", "API_KEY_FILE");
        check("SERVER_PORT", "SERVER__PORT");
        check("CONFIGURATION", "CONFIG");
        check("KV_BYTES", "KV__KV_BYTES");
    }

    /// The settings there are, those without a value included. A knob is worth its place if an
    /// operator can say which value is better: derive it otherwise. This number may only shrink, but
    /// for the file of measured times, from which others can be derived, the five of KV events, which
    /// name sockets and what readers expect, the host memory that may be filled with KV blocks, the
    /// tables of several models, counted as one, which say of one model what others say of all, int8
    /// weights, which are faster and less exact, the folder of packed weights, which spends disk on
    /// faster starts, two rights that only an operator can give: to go first (`best_priority`), and to
    /// be this server's name (`hosts`), and whether decisions may be about a state of which the model
    /// reads a part (`truncate`): only an operator knows what depends on them.
    #[test]
    fn settings_are_few() {
        let mut names = Vec::new();
        assert!(collect("", &mut names));
        let of_cuda = names.iter().filter(|name| name.starts_with("CUDA__"));
        let counts = (of_cuda.count(), names.len());
        let cuda = if cfg!(feature = "cuda") { 7 } else { 0 };
        assert_eq!(counts, (cuda, 80 + cuda), "{names:#?}");
    }

    #[test]
    fn a_service_named_prelude_is_no_misspelling() {
        let check = |name, value, expected| assert_eq!(is_known(name, value), expected, "{name}");
        check("SERVICE_HOST", "10.0.0.1", true);
        check("SERVICE_PORT", "8000", true);
        check("SERVICE_PORT_HTTP", "8000", true);
        check("PORT", "tcp://10.0.0.1:8000", true);
        check("PORT_8000_TCP_ADDR", "10.0.0.1", true);
        check("PORT", "8000", false);
        check("HOST", "0.0.0.0", false);
        check("SERVER_PORT", "8000", false);
        check("API_KEY", "", true);
        check("TEST_CUBLASLT", "1", true);
    }
}
