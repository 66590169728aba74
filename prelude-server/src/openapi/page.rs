//! `/docs`: the routes as a page, which runs no script.

use std::fmt::Write as _;

use crate::endpoint::Endpoint;

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Prelude: routes</title>
<link rel="stylesheet" href="ui/style.css">
</head>
<body>
<main>
<h1>Routes</h1>
<p>Fields, types and answers of each are in <a href="openapi.json">/openapi.json</a> (OpenAPI 3.1), which clients and other viewers read. <a href="ui">/ui</a> asks from the browser.</p>
<div class="scroll">
<table>
<thead><tr><th scope="col">Method</th><th scope="col">Path</th><th scope="col">Answers</th></tr></thead>
<tbody>
"#;
const TAIL: &str = "</tbody>\n</table>\n</div>\n</main>\n</body>\n</html>\n";

/// Returns the page of these endpoints.
pub(crate) fn page(endpoints: &[&Endpoint]) -> String {
    let mut page = HEAD.to_owned();
    for endpoint in endpoints {
        let paths: Vec<String> = endpoint.paths.iter().map(|p| super::template(p)).collect();
        let (method, summary) = (endpoint.method, endpoint.summary);
        // Writing to a string cannot fail. The texts are the program's own, without markup.
        let _ = writeln!(
            page,
            "<tr><td>{method}</td><td><code>{}</code></td><td>{summary}</td></tr>",
            paths.join("</code>, <code>")
        );
    }
    page.push_str(TAIL);
    page
}

#[cfg(test)]
mod tests {
    use crate::routes::ENDPOINTS;

    #[test]
    fn every_route_is_on_the_page() {
        let page = super::page(ENDPOINTS);
        for endpoint in ENDPOINTS {
            assert!(!endpoint.summary.contains(['<', '&']), "{endpoint:?}");
            for path in endpoint.paths {
                let path = format!("<code>{}</code>", path.replace('*', "{id}"));
                assert!(page.contains(&path), "{path}");
            }
        }
    }
}
