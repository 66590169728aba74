//! Chat templates and rerank templates as checkpoints bring them, before conversations as clients do:
//! a text, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prelude_server_fuzz::Leaf;
use prelude_text::{
    rerank_template::RerankTemplate,
    template::{ChatInputs, ChatTemplate},
};
use serde_json::{Map, json};

/// Pieces of which most templates are made, so that most inputs get past the parser.
const PIECES: &[&str] = &[
    "{{ messages[0].content }}",
    "{% for m in messages %}",
    "{{ m.role }}",
    "{{ m['content'] }}",
    "{% endfor %}",
    "{% if tools %}",
    "{% elif documents %}",
    "{% else %}",
    "{% endif %}",
    "{% if add_generation_prompt %}",
    "{{ x|tojson }}",
    "{{ x|tojson(indent=2) }}",
    "{{ x[::-1] }}",
    "{{ x[1:] }}",
    "{% set ns = namespace(a=1) %}",
    "{% set ns.a = ns.a + 1 %}",
    "{{ ns.a }}",
    "{{ x.split('a')[-1] }}",
    "{{ x|trim }}",
    "{{ x|upper }}",
    "{{ x.items() }}",
    "{{ loop.index0 }}",
    "{% macro f(a) %}{{ a }}{{ f(a) }}{% endmacro %}",
    "{{ f(1) }}",
    "{{ raise_exception(x) }}",
    "{{ strftime_now('%Y %q') }}",
    "{{ x * 9 }}",
    "{{ x ~ x }}",
    "{{ x % 0 }}",
    "{{ x // 0 }}",
    "{% set y = x ~ x %}",
    "{% set y = [x, x] %}",
    "{{ x is mapping }}",
    "{{ x|length }}",
    "{{ x|replace('a', 'aa') }}",
    "{{ x|join(x) }}",
    "{{ x|sort }}",
    "{{ x|batch(3)|list }}",
    "{{ range(99)|list }}",
    "{% break %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{{ bos_token }}",
    "{{ x|format(x) }}",
    "{{ '%s' % x }}",
    "{{ x % (x, 3) }}",
    "{{ (x, x ~ 'a',) }}",
    "{{ x.rsplit(x, 1) }}",
    "{{ x.partition(x) }}",
    "{{ x.splitlines(true) }}",
    "{{ x.find(x, -2, 5) }}",
    "{{ x.center(9, x) }}",
    "{{ x.format(x, a=x) }}",
    "{{ x|dictsort }}",
    "{{ x|sum(attribute='a') }}",
    "{{ x|round(2) }}",
    "{{ x|tojson(separators=(',', ':'), ensure_ascii=true) }}",
    "{{ messages }}",
    "{% raw %}",
    "{% endraw %}",
    "{{ x.startswith('a') }}",
    "{{ x|indent(9) }}",
    "-}}",
    "{#",
];

fn source(pieces: &[(u8, &str)]) -> String {
    let piece = |(at, text): &(u8, &str)| match PIECES.get(usize::from(*at)) {
        Some(piece) => format!("{piece}{text}"),
        None => (*text).to_owned(),
    };
    pieces.iter().map(piece).collect()
}

fuzz_target!(|input: (Vec<(u8, &str)>, Leaf<'_>, Leaf<'_>)| {
    let (pieces, content, x) = input;
    let source = source(&pieces);
    let names = ["content".to_owned(), "role".to_owned(), "a".to_owned()];
    let (content, x) = (content.value(&names), x.value(&names));
    let messages = [json!({"role": "user", "content": content})];
    let kwargs = Map::from_iter([("x".to_owned(), x)]);
    if let Ok(template) = ChatTemplate::new(&source, [("bos_token", "<s>")]) {
        let inputs = ChatInputs {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            kwargs: &kwargs,
        };
        let (first, second) = (template.render(&inputs), template.render(&inputs));
        // The same inputs, the same text, unless it tells the time.
        assert!(first == second || source.contains("strftime_now"));
    }
    if let Ok(template) = RerankTemplate::new(&source) {
        let _ = template.render(None, "b", "c");
        let _ = template.render(Some("a"), "b", "c");
    }
});
