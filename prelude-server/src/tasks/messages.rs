//! Messages of a conversation: checked, and made what templates expect.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::{
    error::ApiError,
    wire::{Json, check_some},
};

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// A message, as it is described: templates are given all its fields.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "messages stay JSON, since templates read any field of theirs"
)]
pub(crate) struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: Role,
    /// A string, or parts of type `text`. An assistant's may be absent.
    content: Option<Content>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "described, as the message is")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "described, as the message is")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "described, as the message is")]
pub(crate) struct Part {
    /// `text` or `input_text`.
    r#type: String,
    text: String,
}

/// Types of content parts that are not text, which no other objects have.
const MEDIA: [&str; 9] = [
    "image_url",
    "input_image",
    "image_file",
    "input_audio",
    "audio_url",
    "video_url",
    "input_video",
    "input_file",
    "file_url",
];

/// Returns true if there is a content part that is not text in a JSON value.
pub(crate) fn has_media(raw: &str) -> bool {
    // A string is text, whatever it holds; and most other values have no part at all.
    let may_have = !raw.starts_with('"')
        && raw.contains("\"type\"")
        && MEDIA.iter().any(|kind| raw.contains(kind));
    may_have && serde_json::from_str(raw).is_ok_and(|value: Value| is_media(&value))
}

/// Returns true if there is a content part that is not text in a value.
fn is_media(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(is_media),
        Value::Object(members) => members.iter().any(|(name, value)| match name.as_str() {
            "type" => value.as_str().is_some_and(|kind| MEDIA.contains(&kind)),
            _ => is_media(value),
        }),
        _ => false,
    }
}

/// Values in the arguments of all calls of a conversation: as text they are bounded by the body,
/// as a tree they take up to thirty times as much.
const ARGUMENT_VALUES_MAX: usize = 100_000;

/// Checks messages, and gives them the form that templates are written for: the one in which
/// transformers' users pass them, which OpenAI's is not.
///
/// A field that is null is absent. Contents are strings; a user's parts stay parts where the
/// template `reads_parts`. Arguments of calls are objects, and reasoning has both of its names.
///
/// # Errors
/// 400 naming the message and what is wrong with it.
pub(crate) fn checked(value: Option<Json>, reads_parts: bool) -> Result<Vec<Value>, ApiError> {
    let value = value.ok_or_else(|| ApiError::missing_field("messages"))?;
    let Value::Array(mut messages) = value.0 else {
        return Err(ApiError::invalid_type("messages", "a list of objects"));
    };
    check_some("messages", &messages)?;
    check_all(&mut messages, "messages", reads_parts)?;
    Ok(messages)
}

/// Checks the messages of a field and gives them the form that templates are written for, as
/// [`checked`] does.
///
/// # Errors
/// 400 naming the message and what is wrong with it.
pub(crate) fn check_all(
    messages: &mut [Value],
    field: &str,
    reads_parts: bool,
) -> Result<(), ApiError> {
    let mut room = ARGUMENT_VALUES_MAX;
    for (index, message) in messages.iter_mut().enumerate() {
        let pointer = format!("/{field}/{index}");
        check(message, &pointer, reads_parts, &mut room)?;
    }
    Ok(())
}

/// Returns the bytes of all texts in `value`.
pub(crate) fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(map) => {
            let each = |(name, value): (&String, &Value)| name.len() + text_bytes(value);
            map.iter().map(each).sum()
        }
        _ => 1,
    }
}

fn check(
    message: &mut Value,
    pointer: &str,
    reads_parts: bool,
    room: &mut usize,
) -> Result<(), ApiError> {
    let Value::Object(message) = message else {
        return Err(ApiError::invalid_type(pointer.to_owned(), "an object"));
    };
    let role = check_role(message, pointer)?;
    let (is_assistant, is_user) = (role == "assistant", role == "user");
    let path = format!("{pointer}/content");
    match message.get_mut("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let texts = texts(parts, &path)?;
            let content = match reads_parts && is_user {
                true => texts
                    .iter()
                    .map(|text| json!({"type": "text", "text": text}))
                    .collect(),
                // As other servers do it.
                false => Value::String(texts.join("\n")),
            };
            message.insert("content".to_owned(), content);
        }
        // Templates put an assistant's words between others, so there must be some.
        None | Some(Value::Null) if is_assistant => {
            message.insert("content".to_owned(), Value::String(String::new()));
        }
        None | Some(Value::Null) => return Err(ApiError::missing_field(path)),
        Some(_) => return Err(ApiError::invalid_type(path, "a string or a list of parts")),
    }
    // Clients send the answers they got with a null for each field that these had not; templates
    // ask `is defined`.
    message.retain(|_, value| !value.is_null());
    name_reasoning(message);
    check_calls(message, pointer, room)
}

/// Gives reasoning both names by which templates know it.
fn name_reasoning(message: &mut Map<String, Value>) {
    let names = ["reasoning_content", "reasoning"];
    for (from, to) in [(names[0], names[1]), (names[1], names[0])] {
        if let (Some(Value::String(text)), None) = (message.get(from), message.get(to)) {
            let text = Value::String(text.clone());
            message.insert(to.to_owned(), text);
        }
    }
}

/// Makes the arguments of calls objects. A list without calls is no list.
fn check_calls(
    message: &mut Map<String, Value>,
    pointer: &str,
    room: &mut usize,
) -> Result<(), ApiError> {
    let Some(calls) = message.get_mut("tool_calls") else {
        return Ok(());
    };
    let path = format!("{pointer}/tool_calls");
    let calls = match calls {
        Value::Array(calls) if calls.iter().all(Value::is_object) => calls,
        _ => return Err(ApiError::invalid_type(path, "a list of objects")),
    };
    if calls.is_empty() {
        message.remove("tool_calls");
        return Ok(());
    }
    for call in calls {
        if let Some(Value::Object(function)) = call.get_mut("function") {
            let arguments = function.entry("arguments").or_insert(Value::Null);
            if let Some(object) = parsed(arguments, room) {
                *arguments = object;
            }
            if *room == 0 {
                let must = format!("have at most {ARGUMENT_VALUES_MAX} values in all arguments");
                return Err(ApiError::invalid_value(path, must));
            }
        }
    }
    Ok(())
}

/// Returns the object or list that arguments spell, empty if they spell nothing; `None` if they
/// are to stay as they are. Takes the number of values from `room`, and nothing is parsed that has
/// more.
fn parsed(arguments: &Value, room: &mut usize) -> Option<Value> {
    let text = match arguments {
        Value::Null => "",
        Value::String(text) => text.trim(),
        _ => return None,
    };
    if text.is_empty() || text == "null" {
        return Some(Value::Object(Map::new()));
    }
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let (mut in_string, mut escaped) = (false, false);
    let separators = text.bytes().filter(|byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'"' if !was_escaped => in_string = !in_string,
            b'\\' if !was_escaped => escaped = in_string,
            _ => {}
        }
        !in_string && matches!(byte, b',' | b':' | b'[' | b'{')
    });
    *room = room.saturating_sub(separators.count());
    (*room > 0).then(|| serde_json::from_str(text).ok())?
}

fn check_role<'m>(message: &'m mut Map<String, Value>, pointer: &str) -> Result<&'m str, ApiError> {
    let path = || format!("{pointer}/role");
    match message.get_mut("role") {
        None | Some(Value::Null) => Err(ApiError::missing_field(path())),
        Some(Value::String(role)) => {
            if role == "developer" {
                "system".clone_into(role);
            }
            if !ROLES.contains(&&**role) {
                let must = "be `system`, `developer`, `user`, `assistant` or `tool`";
                return Err(ApiError::invalid_value(path(), must));
            }
            Ok(role)
        }
        Some(_) => Err(ApiError::invalid_type(path(), "a string")),
    }
}

/// Returns the texts of parts.
fn texts(parts: &[Value], pointer: &str) -> Result<Vec<String>, ApiError> {
    let text = |(index, part): (usize, &Value)| -> Result<String, ApiError> {
        let path = format!("{pointer}/{index}");
        match (part.get("type").and_then(Value::as_str), part.get("text")) {
            (Some("text" | "input_text"), Some(Value::String(text))) => Ok(text.clone()),
            (Some("text" | "input_text"), _) => {
                Err(ApiError::invalid_type(format!("{path}/text"), "a string"))
            }
            (Some(_), _) => {
                let path = format!("{path}/type");
                let message =
                    format!("field `{path}` must be `text`: this server reads text alone");
                Err(ApiError::new(400, "unsupported_parameter", message).with_param(path))
            }
            (None, _) => Err(ApiError::missing_field(format!("{path}/type"))),
        }
    };
    parts.iter().enumerate().map(text).collect()
}

/// Returns the texts of a message's content.
fn content(message: &mut Value) -> Vec<&mut String> {
    match message.get_mut("content") {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter_mut()
                .filter_map(|part| match part.get_mut("text") {
                    Some(Value::String(text)) => Some(text),
                    _ => None,
                });
            texts.collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the text of a conversation up to the end of its final message's content, so that the model
/// goes on with it.
///
/// The content's end is marked before rendering: what the template prints behind it may hold the
/// same words.
///
/// # Errors
/// 400 if the template does not print that content; whatever `render` fails with.
pub(crate) fn render_unfinished(
    messages: &[Value],
    render: impl FnOnce(&[Value]) -> Result<String, ApiError>,
) -> Result<String, ApiError> {
    let hidden = || {
        ApiError::template(
            "the final message cannot be continued: the template does not print its content",
        )
    };
    let mut marked = messages.to_vec();
    let content = marked.last_mut().and_then(|m| content(m).pop());
    let Some(content) = content.filter(|text| !text.trim().is_empty()) else {
        return Err(hidden());
    };
    let mark = unused_mark(messages);
    let trimmed = content.trim_end().len();
    let blanks = content[trimmed..].to_owned();
    // The blank at the end tells whether the template trims what it prints.
    content.push_str(&mark);
    content.push(' ');
    let mut text = render(&marked)?;
    let at = text.rfind(&mark).ok_or_else(hidden)?;
    let trims = !text[at + mark.len()..].starts_with(' ');
    text.truncate(at);
    if trims && text.ends_with(&blanks) {
        text.truncate(text.len() - blanks.len());
    }
    Ok(text)
}

/// Returns the parts of a conversation's `text` that come before any message's content and behind all of them: the
/// template's own, nothing where it prints no content.
///
/// # Errors
/// The errors of `render`.
pub(crate) fn around<'t>(
    messages: &[Value],
    text: &'t str,
    render: impl FnOnce(&[Value]) -> Result<String, ApiError>,
) -> Result<(&'t str, &'t str), ApiError> {
    let mark = unused_mark(messages);
    let (head, tail) = (format!("{mark}HEAD_"), format!("{mark}TAIL_"));
    let mut marked = messages.to_vec();
    // All of them: some have no content, and a template may print them in another order.
    for message in &mut marked {
        let mut content = content(message);
        if let Some(first) = content.first_mut() {
            first.insert_str(0, &head);
        }
        if let Some(last) = content.last_mut() {
            last.push_str(&tail);
        }
    }
    let marked = render(&marked)?;
    let before = marked.split_once(&head).map_or("", |(before, _)| before);
    let behind = marked.rsplit_once(&tail).map_or("", |(_, behind)| behind);
    let pairs = text.chars().zip(before.chars());
    let same = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8());
    let (before, rest) = text.split_at(same.sum());
    let pairs = rest.chars().rev().zip(behind.chars().rev());
    let same = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8());
    let behind = &rest[rest.len() - same.sum::<usize>()..];
    Ok((before, behind))
}

/// Returns a word that no message holds.
fn unused_mark(messages: &[Value]) -> String {
    let all = Value::from(messages.to_vec()).to_string();
    let marks = (0u32..).map(|i| format!("PRELUDE_END_OF_CONTENT_{i}_"));
    let mut unused = marks.filter(|mark| !all.contains(mark));
    unused.next().expect("messages hold finitely many words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tasks::conversation::ConversationFields, wire::Fields};

    fn check(messages: &str, expected: Result<&str, (&str, &str)>) {
        let body = format!(r#"{{"messages":{messages}}}"#);
        let fields = Fields::from_body(&body).unwrap().group();
        let found = fields.and_then(|fields: ConversationFields| checked(fields.messages, false));
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(Value::from(found).to_string(), expected);
            }
            (Err(found), Err((reason, param))) => {
                assert_eq!((found.reason(), found.param()), (reason, Some(param)));
                assert_eq!(found.status(), 400);
            }
            (found, expected) => panic!("{messages}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn messages_become_what_templates_expect() {
        check(
            r#"[{"role":"developer","content":"a"},{"role":"assistant","tool_calls":[]}]"#,
            Ok(r#"[{"role":"system","content":"a"},{"role":"assistant","content":""}]"#),
        );
        // An answer as OpenAI's clients dump it.
        check(
            r#"[{"role":"assistant","content":null,"refusal":null,"tool_calls":null}]"#,
            Ok(r#"[{"role":"assistant","content":""}]"#),
        );
        check(
            r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#,
            Ok(r#"[{"role":"user","content":"a\nb"}]"#),
        );
        for (name, other) in [
            ("reasoning", "reasoning_content"),
            ("reasoning_content", "reasoning"),
        ] {
            check(
                &format!(r#"[{{"role":"assistant","content":"a","{name}":"b"}}]"#),
                Ok(&format!(
                    r#"[{{"role":"assistant","content":"a","{name}":"b","{other}":"b"}}]"#
                )),
            );
        }
    }

    #[test]
    fn arguments_of_calls_become_objects() {
        let calls = |arguments: &str| {
            format!(
                r#"[{{"role":"assistant","content":"","tool_calls":[{{"function":{{"name":"f"{arguments}}}}}]}}]"#
            )
        };
        let check = |given: &str, expected: &str| {
            let expected = calls(&format!(r#","arguments":{expected}"#));
            check(&calls(given), Ok(&expected));
        };
        check(
            r#","arguments":"{\"city\": \"Rome\", \"at\": {\"b\": 1, \"a\": 1.0}}""#,
            r#"{"city":"Rome","at":{"b":1,"a":1.0}}"#,
        );
        check(r#","arguments":" {} ""#, "{}");
        for nothing in [
            "",
            r#","arguments":"""#,
            r#","arguments":null"#,
            r#","arguments":"null""#,
        ] {
            check(nothing, "{}");
        }
        // Objects stay, and so does what is no JSON or names no parameters.
        for same in [r#"{"a":[1]}"#, r#""{\"a\": ""#, r#""Rome""#, r#""1""#] {
            check(&format!(r#","arguments":{same}"#), same);
        }
        let many = format!(r#","arguments":"[{}1]""#, "1,".repeat(ARGUMENT_VALUES_MAX));
        let many = format!(r#"{{"messages":{}}}"#, calls(&many));
        let many: ConversationFields = Fields::from_body(&many).unwrap().group().unwrap();
        let refused = checked(many.messages, false).unwrap_err();
        assert_eq!(refused.param(), Some("/messages/0/tool_calls"));
        // Commas in texts are no values.
        let text = format!(r#"{{"text": "{}"}}"#, ",".repeat(ARGUMENT_VALUES_MAX));
        assert!(parsed(&text.into(), &mut 3).is_some_and(|v| v.is_object()));
    }

    #[test]
    fn parts_of_users_stay_parts_where_templates_read_them() {
        let parts = json!([{"type": "input_text", "text": "a", "cache_control": {}},
            {"type": "text", "text": "b"}]);
        let message = |role: &str| json!({"role": role, "content": parts});
        let messages = Json(json!([message("user"), message("system")]));
        let found = checked(Some(messages), true).unwrap();
        let texts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(found[0]["content"], texts);
        assert_eq!(found[1]["content"], "a\nb");
        let render = |messages: &[Value]| {
            let texts = [0, 1].map(|i| messages[0]["content"][i]["text"].as_str().unwrap());
            Ok(format!("<{}>", texts.concat()))
        };
        let whole = render(&found).unwrap();
        assert_eq!(around(&found[..1], &whole, render).unwrap(), ("<", ">"));
        assert_eq!(render_unfinished(&found[..1], render).unwrap(), "<ab");
    }

    #[test]
    fn messages_are_refused_by_name() {
        check("[]", Err(("invalid_value", "messages")));
        check("{}", Err(("invalid_type", "messages")));
        check("[1]", Err(("invalid_type", "/messages/0")));
        check("[{}]", Err(("missing_field", "/messages/0/role")));
        check(r#"[{"role":1}]"#, Err(("invalid_type", "/messages/0/role")));
        check(
            r#"[{"role":"king","content":""}]"#,
            Err(("invalid_value", "/messages/0/role")),
        );
        check(
            r#"[{"role":"user"}]"#,
            Err(("missing_field", "/messages/0/content")),
        );
        check(
            r#"[{"role":"user","content":1}]"#,
            Err(("invalid_type", "/messages/0/content")),
        );
        check(
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            Err(("unsupported_parameter", "/messages/0/content/0/type")),
        );
        check(
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            Err(("invalid_type", "/messages/0/content/0/text")),
        );
        check(
            r#"[{"role":"assistant","tool_calls":{}}]"#,
            Err(("invalid_type", "/messages/0/tool_calls")),
        );
        check(
            r#"[{"role":"user","content":"a","content":"b"}]"#,
            Err(("duplicate_field", "/messages/0")),
        );
    }

    #[test]
    fn the_template_is_told_from_what_it_is_given() {
        let check = |contents: &[&str], expected: (&str, &str)| {
            let message = |content: &&str| serde_json::json!({"content": content});
            let messages: Vec<Value> = contents.iter().map(message).collect();
            let render = |messages: &[Value]| {
                let contents = messages.iter().map(|m| m["content"].as_str().unwrap());
                let turns: Vec<String> = contents.map(|c| format!("<{}>", c.trim())).collect();
                Ok(format!("é{}<é", turns.concat()))
            };
            let text = render(&messages).unwrap();
            assert_eq!(
                around(&messages, &text, render).unwrap(),
                expected,
                "{text}"
            );
        };
        check(&["a"], ("é<", "><é"));
        check(&["a", "b"], ("é<", "><é"));
        // The same words inside.
        check(&["é<", "><é"], ("é<", "><é"));
        check(&[" ", " "], ("é<", "><é"));
        check(&[""], ("é<", "><é"));
    }

    /// A call has no content, and some templates print the first message last.
    #[test]
    fn contents_may_be_missing_or_in_another_order() {
        let call = serde_json::json!({"role": "assistant", "content": null});
        let text = |text: &str| serde_json::json!({"role": "user", "content": text});
        let render = |messages: &[Value]| {
            let mut turns: Vec<_> = messages.iter().map(|m| m["content"].as_str()).collect();
            turns.rotate_left(1);
            let turns = turns.iter().map(|c| format!("<{}>", c.unwrap_or("call")));
            Ok(format!("A{}Z", turns.collect::<String>()))
        };
        let check = |messages: &[Value], expected: (&str, &str)| {
            let whole = render(messages).unwrap();
            assert_eq!(
                around(messages, &whole, render).unwrap(),
                expected,
                "{whole}"
            );
        };
        check(&[text("one"), text("two"), text("three")], ("A<", ">Z"));
        check(&[text("one"), call.clone()], ("A<call><", ">Z"));
        check(
            &[call.clone(), text("one"), text("two")],
            ("A<", "><call>Z"),
        );
        check(&[call.clone(), call], ("", ""));
    }

    #[test]
    fn the_final_message_is_cut_at_its_end() {
        let check =
            |before: &str, after: &str, trims: bool, content: &str, expected: Option<&str>| {
                let messages = [serde_json::json!({"role": "assistant", "content": content})];
                let found = render_unfinished(&messages, |messages| {
                    let content = messages[0]["content"].as_str().unwrap();
                    let content = if trims { content.trim() } else { content };
                    Ok(format!("{before}{content}{after}"))
                });
                assert_eq!(found.ok().as_deref(), expected, "{content:?}");
            };
        check(
            "<a>So <b>",
            "<end>",
            false,
            "So far",
            Some("<a>So <b>So far"),
        );
        check("<a>", "<end>", false, " So far ", Some("<a> So far "));
        check("<a>", "<end>", true, " So far ", Some("<a>So far"));
        check("<a>", "<end>", true, "So\nfar\n", Some("<a>So\nfar"));
        // What follows the content says the same.
        check("<user>", "</user>", false, "user", Some("<user>user"));
        check("<a>", "<end>", false, "", None);
        check(
            "<a>",
            "<end>",
            false,
            "PRELUDE_END_OF_CONTENT_0_",
            Some("<a>PRELUDE_END_OF_CONTENT_0_"),
        );
        let messages = [serde_json::json!({"role": "assistant", "content": "text"})];
        assert!(render_unfinished(&messages, |_| Ok("<a>hidden".to_owned())).is_err());
    }
}
