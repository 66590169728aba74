//! Schemas whose numbers are at the edges of what their readers compute with, made from bytes.

/// Numbers as clients may write them.
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "-0.0",
    "1",
    "-1",
    "9",
    "10",
    "99",
    "255",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9007199254740990",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "9007199254740993.0",
    "-9007199254740991",
    "-9007199254740992",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775807",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e18",
    "1e19",
    "-1e19",
    "1e22",
    "1e308",
    "-1e308",
    "1e400",
    "5e-324",
    "-5e-324",
    "2.2250738585072014e-308",
    "0.1",
    "0.3",
    "0.30000000000000004",
    "1e-7",
    "1e-8",
    "1e-9",
    "1e-17",
    "1e-99",
    "1e-100",
    "1e-101",
    "3.99999999",
    "399999999",
    "4e8",
    "65536",
    "100000",
    "999983",
    "1.0",
    "1E0",
    "1e+2",
    "100e-2",
    "123456789012345678901234567890",
    "0.1234567890123456789",
];

const RANGES: &[&str] = &[
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

const COUNTS: &[&str] = &[
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];

const TYPES: &[&str] = &[
    r#""integer""#,
    r#""number""#,
    r#""string""#,
    r#""array""#,
    r#""object""#,
    r#"["integer", "null"]"#,
    r#"["number", "string"]"#,
];

const TEXTS: &[&str] = &[
    r#""pattern": "^[ab]{2,3}$""#,
    r#""pattern": "(?=a)b""#,
    r#""format": "date""#,
    r#""format": "banana""#,
    r#""required": ["a"]"#,
    r#""required": ["b", "c"]"#,
    r#""additionalProperties": false"#,
    r#""uniqueItems": true"#,
    r##""$ref": "#/$defs/a""##,
    r##""$ref": "#/$defs/b""##,
    r##""$ref": "#""##,
    r##""$ref": "#/$defs/none""##,
];

/// Levels of schemas within schemas.
const DEPTH_MAX: u32 = 4;

/// Bytes that choices are made by: zeros once they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> usize {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                usize::from(*first)
            }
            None => 0,
        }
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.next() % of.len()]
    }

    fn number(&mut self) -> String {
        // Most are small, so that some schemas are compiled.
        match self.next() % 24 {
            0 => format!("{}e{}", self.next(), self.next() as i64 * 2 - 256),
            1 => format!("{}.{}{}", self.next(), self.next(), self.next()),
            // A few away from the end of 64 bits.
            2 => format!("{}", i64::MIN + self.next() as i64),
            3..=6 => self.one(NUMBERS).to_owned(),
            7 => format!("-{}", self.next()),
            _ => format!("{}", self.next() % 100),
        }
    }

    fn value(&mut self, depth: u32) -> String {
        match self.next() % 6 {
            0 if depth > 0 => format!("[{}, {}]", self.value(depth - 1), self.value(depth - 1)),
            1 if depth > 0 => format!(r#"{{"a": {}, "b": 1}}"#, self.value(depth - 1)),
            2 => r#""text""#.to_owned(),
            _ => self.number(),
        }
    }

    /// One keyword with its value.
    fn keyword(&mut self, depth: u32) -> String {
        let below = depth.saturating_sub(1);
        match self.next() % if depth > 0 { 16 } else { 8 } {
            0..=2 => format!(r#""{}": {}"#, self.one(RANGES), self.number()),
            3 => format!(r#""{}": {}"#, self.one(COUNTS), self.number()),
            4 => format!(r#""const": {}"#, self.value(2)),
            5 => format!(r#""enum": [{}, {}]"#, self.value(1), self.value(2)),
            6 => format!(r#""type": {}"#, self.one(TYPES)),
            7 => self.one(TEXTS).to_owned(),
            8 => format!(r#""items": {}"#, self.schema(below)),
            9 => format!(
                r#""prefixItems": [{}, {}]"#,
                self.schema(below),
                self.schema(below)
            ),
            10 => format!(r#""properties": {{"a": {}}}"#, self.schema(below)),
            11 => format!(
                r#""properties": {{"a": {}, "b": {}}}"#,
                self.schema(below),
                self.schema(below)
            ),
            12 => format!(
                r#""patternProperties": {{"^[a{}]": {}}}"#,
                self.one(&["b", "c", "^"]),
                self.schema(below)
            ),
            13 => format!(r#""additionalProperties": {}"#, self.schema(below)),
            _ => format!(
                r#""{}": [{}, {}]"#,
                self.one(&["allOf", "anyOf", "oneOf"]),
                self.schema(below),
                self.schema(below)
            ),
        }
    }

    fn schema(&mut self, depth: u32) -> String {
        let count = 1 + self.next() % 3;
        let keywords: Vec<String> = (0..count).map(|_| self.keyword(depth)).collect();
        format!("{{{}}}", keywords.join(", "))
    }
}

/// Returns a request whose answers are to be of a schema that `bytes` describe, in one of the places
/// where a schema may come in: a path and a body, which need not be JSON.
pub fn request(bytes: &[u8]) -> (&'static str, String) {
    let mut bytes = Bytes(bytes);
    let place = bytes.next() % 5;
    let (a, b) = (bytes.schema(0), bytes.schema(0));
    let keywords = bytes.schema(DEPTH_MAX);
    let schema = format!(
        r#"{{"$defs": {{"a": {a}, "b": {b}}}, {}"#,
        keywords.trim_start_matches('{')
    );
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let fields = match place {
        0 => format!(r#""structured_outputs": {{"json": {schema}}}"#),
        1 => format!(r#""structured_outputs": {{"json": {}}}"#, quoted(&schema)),
        2 => format!(
            r#""response_format": {{"type": "json_schema", "json_schema": {{"name": "n", "schema": {schema}}}}}"#
        ),
        3 => format!(
            r#""structured_outputs": {{"grammar": {}}}"#,
            quoted(&format!("start: %json {schema}\n"))
        ),
        _ => {
            let fields = format!(
                r#""tools": [{{"type": "function", "function": {{"name": "f", "parameters": {schema}}}}}], "tool_choice": "required""#
            );
            let body = format!(
                r#"{{"messages": [{{"role": "user", "content": "a"}}], "max_tokens": 6, {fields}}}"#
            );
            return ("/v1/chat/completions", body);
        }
    };
    let body = format!(r#"{{"prompt": "x", "max_tokens": 6, "temperature": 2, {fields}}}"#);
    ("/v1/completions", body)
}
