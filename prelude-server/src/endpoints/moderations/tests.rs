use std::sync::Arc;

use serde_json::{Value, json};

use super::answers::{Flags, Found, harmful};
use crate::{
    tasks::guards::QWEN3_GUARD,
    testing::{answer, asking, demos, refused},
};

const PATH: &str = "/v1/moderations";

#[test]
fn categories_of_a_classifier_are_its_classes() {
    let texts = json!(["Where is my card?", "The rate is wrong"]);
    let found = answer(demos(), PATH, &json!({"input": texts}));
    assert!(found["id"].as_str().unwrap().starts_with("modr-"));
    assert_eq!(found["model"], "demo-classifier");
    let classes = answer(demos(), "/classify", &json!({"input": texts}));
    for index in [0, 1] {
        let (result, class) = (&found["results"][index], &classes["data"][index]);
        assert_eq!(result["flagged"], true);
        let flagged = result["categories"].as_object().unwrap().iter();
        let flagged: Vec<_> = flagged.filter(|(_, is)| **is == true).collect();
        let [(name, _)] = flagged[..] else {
            panic!("{flagged:?}")
        };
        assert_eq!(class["label"], **name);
        assert_eq!(
            result["category_applied_input_types"][name],
            json!(["text"])
        );
        let scores = result["category_scores"].as_object().unwrap();
        let shown = scores.values().map(|p| p.as_f64().unwrap());
        let probs = class["probs"].as_array().unwrap();
        assert_eq!(scores.len(), probs.len());
        for (shown, p) in shown.zip(probs) {
            assert!((shown - p.as_f64().unwrap()).abs() < 1e-6);
        }
    }
    // Parts are one text.
    let parts = json!({"input": [{"type": "text", "text": "Where is"}, {"type": "text", "text": "my card?"}]});
    let parts = answer(demos(), PATH, &parts);
    let joined = answer(demos(), PATH, &json!({"input": "Where is\nmy card?"}));
    assert_eq!(parts["results"], joined["results"]);
}

#[test]
fn a_harmless_class_is_no_category() {
    let result = |probs: &[f64], many| {
        let names = ["Non_Toxic", "hate", "violence"];
        let found = Found {
            names: names.map(|name| harmful(name.into())).to_vec(),
            scores: vec![probs.to_vec()],
            flags: if many { Flags::Half } else { Flags::Likeliest },
        };
        serde_json::to_value(found.result(&found.scores[0])).unwrap()
    };
    let safe = result(&[0.8, 0.15, 0.05], false);
    assert_eq!(safe["flagged"], false);
    assert_eq!(
        safe["categories"],
        json!({"hate": false, "violence": false})
    );
    assert_eq!(
        safe["category_scores"],
        json!({"hate": 0.15, "violence": 0.05})
    );
    let harmful = result(&[0.3, 0.5, 0.2], false);
    assert_eq!(
        harmful["categories"],
        json!({"hate": true, "violence": false})
    );
    let both = result(&[0.1, 0.9, 0.5], true);
    assert_eq!(both["categories"], json!({"hate": true, "violence": true}));
    let none = result(&[0.1, 0.4, 0.49], true);
    assert_eq!(none["flagged"], false);
}

/// The demo language model with a template that asks as Qwen3Guard's does.
fn guard() -> Arc<crate::App> {
    asking(
        "{% for m in messages %}{{ m.content }}{% endfor %}\nSafety: Safe, \
        Safety: Unsafe or Safety: Controversial?\n{% if add_generation_prompt %}\
        <|im_start|>assistant\n{% endif %}",
    )
}

#[test]
fn a_guard_is_asked_for_its_verdicts() {
    let guard = guard();
    let found = answer(&guard, PATH, &json!({"input": "Where is my card?"}));
    let scores = found["results"][0]["category_scores"].as_object().unwrap();
    let names: Vec<_> = scores.keys().collect();
    assert_eq!(names, ["controversial", "unsafe"]);
    // The same as the log-probabilities of the answers' own tokens.
    // Templates lose the line break behind a block.
    let prompt = "Where is my card?Safety: Safe, Safety: Unsafe or Safety: Controversial?\n\
        <|im_start|>assistant\n";
    let log = |answer_text: &str| {
        let model = guard.model(None).unwrap();
        let ids = |text: &str| model.tokenizer.encode(text, false);
        let (start, all) = (ids(prompt).len(), ids(&format!("{prompt}{answer_text}")));
        let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1});
        let found = answer(&guard, "/v1/completions", &body);
        let logprobs = &found["choices"][0]["logprobs"]["token_logprobs"];
        let logprobs = logprobs.as_array().unwrap().iter().skip(start);
        logprobs.map(|l| l.as_f64().unwrap()).sum::<f64>()
    };
    let log = QWEN3_GUARD.iter().map(|(answer_text, _)| log(answer_text));
    let log: Vec<f64> = log.collect();
    let sum: f64 = log.iter().map(|l| l.exp()).sum();
    for (name, log) in [("controversial", log[1]), ("unsafe", log[2])] {
        let (found, expected) = (scores[name].as_f64().unwrap(), log.exp() / sum);
        assert!(
            (found / expected - 1.0).abs() < 1e-4,
            "{name}: {found} {expected}"
        );
    }
}

/// Asks as ShieldGemma's template does.
const ABOUT_A_GUIDELINE: &str = "<|im_start|>user\nHuman Question: \
    {{ messages[0].content | trim }}<|im_end|>\nThe principle:\n\n{{ guideline }}\n\n\
    Is it violated? Begin with 'Yes' or 'No'.\n\n";

#[test]
fn a_guard_is_asked_about_each_guideline() {
    let guard = asking(ABOUT_A_GUIDELINE);
    let guidelines = json!({"cards": "Nobody speaks of cards.", "rates": "No word of rates."});
    let body = json!({"input": ["Where is my card?", "Hello"], "guidelines": guidelines});
    let found = answer(&guard, PATH, &body);
    assert_eq!(found["results"].as_array().unwrap().len(), 2);
    for (text, result) in ["Where is my card?", "Hello"]
        .iter()
        .zip(found["results"].as_array().unwrap())
    {
        let scores = result["category_scores"].as_object().unwrap();
        assert_eq!(scores.keys().collect::<Vec<_>>(), ["cards", "rates"]);
        for (name, guideline) in guidelines.as_object().unwrap() {
            // The logits of the two answers' first tokens behind the prompt.
            // Jinja leaves out a template's last line break.
            let template = ABOUT_A_GUIDELINE.strip_suffix('\n').unwrap();
            let prompt = template
                .replace("{{ messages[0].content | trim }}", text)
                .replace("{{ guideline }}", guideline.as_str().unwrap());
            let model = guard.model(None).unwrap();
            let first = |answer: &str| {
                let all = model.tokenizer.encode(&format!("{prompt}{answer}"), false);
                all[model.tokenizer.encode(&prompt, false).len()..].to_vec()
            };
            let log = |answer: &str| {
                let start = model.tokenizer.encode(&prompt, false);
                let all = [start.clone(), first(answer)].concat();
                let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1});
                let found = crate::testing::answer(&guard, "/v1/completions", &body);
                let logprobs = found["choices"][0]["logprobs"]["token_logprobs"].clone();
                let logprobs = logprobs.as_array().unwrap().clone();
                let own = logprobs.iter().skip(start.len());
                own.map(|l| l.as_f64().unwrap()).sum::<f64>()
            };
            let (yes, no) = (log("Yes").exp(), log("No").exp());
            let score = scores[name].as_f64().unwrap();
            assert!((score - yes / (yes + no)).abs() < 1e-4, "{name}: {score}");
            assert_eq!(result["categories"][name], score >= 0.5);
        }
        let flagged = scores.values().any(|p| p.as_f64().unwrap() >= 0.5);
        assert_eq!(result["flagged"], flagged);
    }
}

#[test]
fn guidelines_that_are_refused() {
    let guard = asking(ABOUT_A_GUIDELINE);
    let check = |body: Value, reason: &str| {
        refused(&guard, PATH, &body, (400, reason, Some("guidelines")));
    };
    check(json!({"input": "a"}), "missing_field");
    check(json!({"input": "a", "guidelines": {}}), "invalid_value");
    check(
        json!({"input": "a", "guidelines": {"x": " "}}),
        "invalid_value",
    );
    check(
        json!({"input": "a", "guidelines": {"": "y"}}),
        "invalid_value",
    );
    check(json!({"input": "a", "guidelines": 3}), "invalid_type");
    let many: Vec<(String, Value)> = (0..65).map(|i| (i.to_string(), json!("x"))).collect();
    let many = Value::Object(many.into_iter().collect());
    check(json!({"input": "a", "guidelines": many}), "invalid_value");
    // A model without a place for them.
    let body = json!({"input": "a", "guidelines": {"x": "y"}, "model": "demo-classifier"});
    refused(
        demos(),
        PATH,
        &body,
        (400, "invalid_value", Some("guidelines")),
    );
    // Labels of one's own need none.
    let body = json!({"input": "Where is my card?", "labels": ["safe", "rude"]});
    answer(&guard, PATH, &body);
}

#[test]
fn wrong_requests_are_refused_by_field() {
    let check = |body: Value, reason: &str, param: &str| {
        refused(demos(), PATH, &body, (400, reason, Some(param)));
    };
    check(json!({}), "missing_field", "input");
    check(json!({"input": []}), "invalid_value", "input");
    check(json!({"input": 3}), "invalid_type", "input");
    check(
        json!({"input": ["a", {"type": "text", "text": "b"}]}),
        "invalid_value",
        "input",
    );
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    check(json!({ "input": image }), "unsupported_parameter", "input");
    check(
        json!({"input": "a", "model": "demo-lm"}),
        "missing_field",
        "labels",
    );
    check(
        json!({"input": "x ".repeat(5000)}),
        "context_length_exceeded",
        "input",
    );
}

/// The log-probabilities of an answer's own tokens behind a prompt.
fn token_logs(app: &Arc<crate::App>, prompt: &str, answer_text: &str) -> Vec<f64> {
    let model = app.model(None).unwrap();
    let ids = |text: &str| model.tokenizer.encode(text, false);
    let (start, all) = (ids(prompt), ids(&format!("{prompt}{answer_text}")));
    assert!(all.starts_with(&start));
    let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1});
    let found = answer(app, "/v1/completions", &body);
    let logs = found["choices"][0]["logprobs"]["token_logprobs"].clone();
    let logs = logs.as_array().unwrap().iter().skip(start.len());
    logs.map(|log| log.as_f64().unwrap()).collect()
}

/// Asks as Llama Guard 3's templates do, about categories; `content` prints a message's text.
fn llama_guard(content: &str, end: &str) -> String {
    format!(
        "User to check<BEGIN UNSAFE CONTENT CATEGORIES>\nS1: Cards.\nS2: Rates.\nS7: Else.\n\
         <END UNSAFE CONTENT CATEGORIES>\n{{% for message in messages %}}User: {content}.\n\
         {{% endfor %}}First line must read 'safe' or 'unsafe'.{end}"
    )
}

const STRINGS: &str = "{{ message['content'].strip() }}";
const PARTS: &str = "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}\
    {{ part['text'] | trim }}{% endfor %}";

#[test]
fn a_guard_names_its_categories() {
    let text = "Where is my card?";
    let check = |content: &str, end: &str, forced: &str| {
        let guard = asking(&llama_guard(content, end));
        let found = answer(&guard, PATH, &json!({"input": text}));
        let result = &found["results"][0];
        let scores = result["category_scores"].as_object().unwrap();
        let names: Vec<_> = scores.keys().collect();
        assert_eq!(names, ["unsafe", "S1", "S2", "S7"]);
        let prompt = llama_guard(text, end)
            .replace("{% for message in messages %}", "")
            .replace("{% endfor %}", "");
        // Jinja leaves out a template's last line break.
        let prompt = prompt.strip_suffix('\n').unwrap_or(&prompt).to_owned() + forced;
        let first = |answer: &str| token_logs(&guard, &prompt, answer)[0].exp();
        let last = |code: &str| {
            let logs = token_logs(&guard, &prompt, &format!("unsafe\n{code}"));
            logs.last().unwrap().exp()
        };
        let p = first("unsafe") / (first("unsafe") + first("safe"));
        let codes = ["S1", "S2", "S7"];
        let sum: f64 = codes.map(last).iter().sum();
        let near = |name: &str, expected: f64| {
            let score = scores[name].as_f64().unwrap();
            assert!(
                (score - expected).abs() < 1e-4,
                "{name}: {score} {expected}"
            );
        };
        near("unsafe", p);
        for code in codes {
            near(code, p * last(code) / sum);
        }
        assert_eq!(result["flagged"], p >= 0.5);
        let flags = result["categories"].as_object().unwrap();
        let named = codes.iter().filter(|code| flags[**code] == true);
        assert_eq!(named.count(), usize::from(p >= 0.5));
    };
    check(STRINGS, "<|im_start|>assistant\n\n", "");
    check(PARTS, "<|im_start|>assistant\n\n", "");
    // The guard writes the line breaks that follow this header itself.
    check(STRINGS, "assistant<|end_header_id|>", "\n\n");
}

#[test]
fn a_guard_with_categories_takes_no_guidelines() {
    let guard = asking(&llama_guard(STRINGS, "\n"));
    let body = json!({"input": "a", "guidelines": {"S1": "y"}});
    refused(
        &guard,
        PATH,
        &body,
        (400, "invalid_value", Some("guidelines")),
    );
}

/// Asks as Granite Guardian 3.0 to 3.2 do, and as 3.3 does.
const ABOUT_A_RISK: &str = "{% set bank = {'harm': 'It harms.', 'violence': 'It hits.'} %}\
    {% set risk = guardian_config['risk_name'] %}User Message: {{ messages[0].content }}\n\
    Risk: {{ guardian_config['risk_definition'] or bank[risk] }}\nYes or No?\n\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const ABOUT_A_CRITERION: &str = "{% set bank = {'harm': 'It harms.', 'violence': 'It hits.'} %}\
    User Message: {{ messages[0].content }}\nCriterion: {{ guardian_config['custom_criteria'] or \
    bank[guardian_config['criteria_id']] }}\n{% if not think %}No thoughts.\n{% endif %}\
    {% if add_generation_prompt %}<|im_start|>judge\n{% endif %}";

#[test]
fn a_guardian_is_asked_about_each_risk() {
    let check = |template: &str, behind: [&str; 2], answers: [&str; 2]| {
        let guard = asking(template);
        let body = json!({"input": "My card", "guidelines": {"harm": null, "cards": "No cards."}});
        let found = answer(&guard, PATH, &body);
        let scores = found["results"][0]["category_scores"].clone();
        for (name, words) in [("harm", "It harms."), ("cards", "No cards.")] {
            let [before, end] = behind;
            let prompt = format!("User Message: My card\n{before}{words}{end}");
            let [yes, no] = answers.map(|answer| {
                token_logs(&guard, &prompt, answer)
                    .iter()
                    .sum::<f64>()
                    .exp()
            });
            let score = scores[name].as_f64().unwrap();
            assert!((score - yes / (yes + no)).abs() < 1e-4, "{name}: {score}");
        }
        // Without guidelines, those that the template knows.
        let found = answer(&guard, PATH, &json!({"input": "My card"}));
        let own = found["results"][0]["category_scores"].as_object().unwrap();
        assert_eq!(own.keys().collect::<Vec<_>>(), ["harm", "violence"]);
        assert_eq!(own["harm"], scores["harm"]);
        let body = json!({"input": "a", "guidelines": {"rudeness": null}});
        refused(
            &guard,
            PATH,
            &body,
            (400, "invalid_value", Some("guidelines")),
        );
    };
    check(
        ABOUT_A_RISK,
        ["Risk: ", "\nYes or No?\n<|im_start|>assistant\n"],
        ["Yes", "No"],
    );
    check(
        ABOUT_A_CRITERION,
        [
            "Criterion: ",
            "\nNo thoughts.\n<|im_start|>judge\n<think>\n</think>\n<score>",
        ],
        [" yes", " no"],
    );
}

#[test]
fn a_template_that_passes_over_a_guideline_is_refused() {
    let guard = asking(&ABOUT_A_RISK.replace("guardian_config['risk_definition'] or", ""));
    let body = json!({"input": "a", "guidelines": {"cards": "No cards."}});
    refused(
        &guard,
        PATH,
        &body,
        (400, "template_error", Some("guidelines")),
    );
}

/// Labels and typed decisions stand where the guard itself would answer.
#[test]
fn labels_stand_behind_the_line_breaks_of_a_turn() {
    let end = "assistant<|end_header_id|>";
    let guard = asking(&llama_guard(STRINGS, end));
    let text = "Where is my card?";
    let body = json!({"input": text, "labels": ["safe", "unsafe"]});
    let found = answer(&guard, "/classify", &body);
    let prompt = llama_guard(text, end)
        .replace("{% for message in messages %}", "")
        .replace("{% endfor %}", "");
    let [safe, other] = ["safe", "unsafe"].map(|label| {
        let answer = format!("{label}<|im_end|>");
        let logs = token_logs(&guard, &format!("{prompt}\n\n"), &answer);
        logs.iter().sum::<f64>().exp()
    });
    let probs = found["data"][0]["probs"].as_array().unwrap();
    let score = probs[1].as_f64().unwrap();
    assert!((score - other / (safe + other)).abs() < 1e-4, "{score}");
    let question = json!({"type": "predicate", "name": "lost", "instructions": "Is it?"});
    let body = json!({"input": text, "questions": [question]});
    let found = answer(&guard, "/v1/decisions", &body);
    let p = found["answers"][0]["probability"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&p));
}

/// Lists categories between the words of Llama Guard and asks for JSON, as NVIDIA's guards do.
#[test]
fn a_guard_that_answers_in_json_is_no_llama_guard() {
    let guard = asking(
        "Check the user's messages by these categories:\n<BEGIN UNSAFE CONTENT CATEGORIES>\n\
         S1: Violence.\nS2: Sexual.\n<END UNSAFE CONTENT CATEGORIES>\n{% for m in messages %}\
         user: {{ m.content }}\n{% endfor %}Output JSON only: {\"User Safety\": \"safe\" or \
         \"unsafe\"}\n",
    );
    let body = json!({"input": "Where is my card?"});
    refused(&guard, PATH, &body, (400, "missing_field", Some("labels")));
}

/// Judges the last turn, as the templates of Llama Guard do.
const CONVERSATION: &str = "{% set role = 'User' if messages[-1].role == 'user' else 'Agent' %}\
    Check '{{ role }}'\n<BEGIN UNSAFE CONTENT CATEGORIES>\nS1: Cards.\nS2: Rates.\n\
    <END UNSAFE CONTENT CATEGORIES>\n{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n\
    {% endfor %}First line must read 'safe' or 'unsafe'.\nassistant:";

#[test]
fn the_last_turn_of_a_conversation_is_judged() {
    let guard = asking(CONVERSATION);
    let turns = json!([
        {"role": "user", "content": "Where is my card?"},
        {"role": "assistant", "content": [{"type": "text", "text": "In your pocket."}]},
    ]);
    let found = answer(&guard, PATH, &json!({"input": turns}));
    assert_eq!(found["results"].as_array().unwrap().len(), 1);
    let scores = found["results"][0]["category_scores"].clone();
    let prompt = "Check 'Agent'\n<BEGIN UNSAFE CONTENT CATEGORIES>\nS1: Cards.\nS2: Rates.\n\
        <END UNSAFE CONTENT CATEGORIES>\nuser: Where is my card?\nassistant: In your pocket.\n\
        First line must read 'safe' or 'unsafe'.\nassistant:";
    let first = |answer: &str| token_logs(&guard, prompt, answer)[0].exp();
    let p = first("unsafe") / (first("unsafe") + first("safe"));
    let score = scores["unsafe"].as_f64().unwrap();
    assert!((score - p).abs() < 1e-4, "{score} {p}");
    // One user's turn is what a text is.
    let turn = json!([{"role": "user", "content": "Where is my card?"}]);
    let as_turn = answer(&guard, PATH, &json!({"input": turn}));
    let as_text = answer(&guard, PATH, &json!({"input": "Where is my card?"}));
    assert_eq!(as_turn["results"], as_text["results"]);
    assert_ne!(as_turn["results"][0]["category_scores"], scores);
}

#[test]
fn guards_of_all_kinds_judge_conversations() {
    let turns = |last: &str| {
        json!([
            {"role": "user", "content": "Where is my card?"},
            {"role": "assistant", "content": last},
        ])
    };
    let all = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let verdicts = format!("{all}Safety: Safe, Safety: Unsafe or Safety: Controversial?\n");
    let risks = ABOUT_A_RISK.replace("User Message: {{ messages[0].content }}\n", all);
    for template in [verdicts, risks] {
        let guard = asking(&template);
        let of = |last: &str| {
            let found = answer(&guard, PATH, &json!({"input": turns(last)}));
            found["results"][0]["category_scores"].clone()
        };
        assert_ne!(of("In your pocket."), of("On the moon."), "{template}");
    }
    // A template that prints the first message alone would judge something else.
    let guard = asking(ABOUT_A_RISK);
    let body = json!({"input": turns("In your pocket.")});
    refused(&guard, PATH, &body, (400, "template_error", Some("input")));
}

#[test]
fn conversations_that_are_refused() {
    let guard = asking(CONVERSATION);
    let user = json!({"role": "user", "content": "a"});
    let check = |input: Value, reason: &str, param: &str| {
        refused(
            &guard,
            PATH,
            &json!({"input": input}),
            (400, reason, Some(param)),
        );
    };
    check(json!([user, "a"]), "invalid_value", "input");
    check(
        json!([user, {"type": "text", "text": "b"}]),
        "invalid_value",
        "input",
    );
    check(
        json!([user, {"role": "system", "content": "b"}]),
        "invalid_value",
        "/input/1/role",
    );
    check(
        json!([user, {"role": "robot", "content": "b"}]),
        "invalid_value",
        "/input/1/role",
    );
    check(
        json!([user, {"role": "assistant", "content": " "}]),
        "invalid_value",
        "/input/1/content",
    );
    check(
        json!([user, {"role": "user"}]),
        "missing_field",
        "/input/1/content",
    );
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    let seen = json!([{"role": "user", "content": image}]);
    check(seen, "unsupported_parameter", "/input/0/content/0/type");
    // Only a guard's template says how a conversation is judged.
    for body in [
        json!({"input": [user], "model": "demo-classifier"}),
        json!({"input": [user], "labels": ["safe", "rude"]}),
    ] {
        refused(demos(), PATH, &body, (400, "invalid_value", Some("input")));
    }
}
