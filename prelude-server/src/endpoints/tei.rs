//! The routes of text-embeddings-inference (TEI): `/embed`, `/predict`, `/similarity` and `/info`.
//! Its `/rerank` is a dialect of ours.

mod embed;
mod info;
pub(crate) mod predict;
mod similarity;

pub(crate) use self::{
    embed::{EMBED, EMBED_ALL},
    info::INFO,
    predict::PREDICT,
    similarity::SIMILARITY,
};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::info::info;
    use crate::{
        App,
        endpoint::Reply,
        testing::{answer, ask, call, demos, embedder},
    };

    /// Asserts that a body is refused as TEI refuses, with a message that names what is wrong.
    fn refuses(app: &Arc<App>, path: &str, body: &Value, part: &str) {
        let (status, found, _) = ask(app, path, body);
        assert_eq!(status, 400, "{found}");
        let kind = found["error_type"].as_str().unwrap();
        assert!(["Validation", "Tokenizer"].contains(&kind), "{found}");
        assert!(found["error"].as_str().unwrap().contains(part), "{found}");
    }

    fn described(app: &Arc<App>) -> Value {
        let Reply::Json(body) = info(&call(app, "/predict")).unwrap() else {
            panic!("a JSON body");
        };
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn tokens_have_vectors_of_their_own() {
        let Some(app) = embedder() else { return };
        let texts = ["Where is my card?", "a"];
        let all = answer(app, "/embed_all", &json!({"inputs": texts}));
        let asked = json!({"input": texts, "task": "token_embed", "use_activation": false});
        let pooled = answer(app, "/pooling", &asked);
        for (at, of_text) in all.as_array().unwrap().iter().enumerate() {
            assert_eq!(*of_text, pooled["data"][at]["data"]);
        }
    }

    #[test]
    fn vectors_are_those_of_embeddings() {
        let Some(app) = embedder() else { return };
        let texts = ["a card", "a bank"];
        let check = |tei: Value, ours: Value| {
            let mut bodies = [json!({"inputs": texts}), json!({"input": texts})];
            for (body, more) in bodies.iter_mut().zip([tei, ours]) {
                let more = more.as_object().unwrap().clone();
                body.as_object_mut().unwrap().extend(more);
            }
            let found = answer(app, "/embed", &bodies[0]);
            let expected = answer(app, "/v1/embeddings", &bodies[1]);
            let found = found.as_array().unwrap();
            assert_eq!(found.len(), 2);
            for (found, expected) in found.iter().zip(expected["data"].as_array().unwrap()) {
                assert_eq!(*found, expected["embedding"], "{}", bodies[0]);
            }
        };
        check(json!({}), json!({}));
        check(
            json!({"normalize": false, "dimensions": 3}),
            json!({"use_activation": false, "dimensions": 3}),
        );
        let one = answer(app, "/embed", &json!({"inputs": "a card"}));
        assert_eq!(one.as_array().unwrap().len(), 1);
        refuses(app, "/embed", &json!({"inputs": []}), "`inputs`");
        refuses(app, "/embed", &json!({"input": "x"}), "`inputs`");
        let named = json!({"inputs": "x", "prompt_name": "q"});
        refuses(app, "/embed", &named, "`prompt_name`");
        let long = "word ".repeat(app.model(None).unwrap().max_model_len as usize * 2);
        refuses(app, "/embed", &json!({"inputs": long}), "maximum context");
        for direction in ["left", "Right"] {
            let body = json!({"inputs": long, "truncate": true, "truncation_direction": direction});
            assert_eq!(ask(app, "/embed", &body).0, 200);
        }
    }

    #[test]
    fn cosines_are_those_of_scores() {
        let Some(app) = embedder() else { return };
        let (source, others) = ("a card", ["a bank", "a card"]);
        let body = json!({"inputs": {"source_sentence": source, "sentences": others},
            "parameters": {"truncate": true}});
        let found = answer(app, "/similarity", &body);
        let pairs = json!({"queries": source, "documents": others});
        let expected = answer(app, "/score", &pairs);
        for (i, found) in found.as_array().unwrap().iter().enumerate() {
            let expected = expected["data"][i]["score"].as_f64().unwrap();
            assert!((found.as_f64().unwrap() - expected).abs() < 1e-6);
        }
        let body = |inputs: Value| json!({ "inputs": inputs });
        let empty = json!({"source_sentence": source, "sentences": []});
        refuses(app, "/similarity", &body(empty), "sentences");
        let wrong = json!({"source_sentence": source, "sentences": others, "prompts": 1});
        refuses(app, "/similarity", &body(wrong), "prompts");
        let info = described(app);
        assert_eq!(info["model_type"]["embedding"]["pooling"], "last_token");
    }

    #[test]
    fn classes_are_sorted() {
        let text = "Where is my card? I ordered it a week ago.";
        let found = answer(demos(), "/predict", &json!({"inputs": text}));
        let expected = answer(demos(), "/classify", &json!({"input": text}));
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), 77);
        assert_eq!(found[0]["label"], "card_arrival");
        let labels = &demos()
            .model(Some("demo-classifier"))
            .unwrap()
            .class_names();
        let mut last = f64::INFINITY;
        for class in found {
            let score = class["score"].as_f64().unwrap();
            assert!(score <= last);
            last = score;
            let index = labels.iter().position(|l| *l == class["label"]).unwrap();
            assert_eq!(class["score"], expected["data"][0]["probs"][index]);
        }
        // As one list and as a batch.
        assert_eq!(
            answer(demos(), "/predict", &json!({"inputs": [text]})),
            json!(found)
        );
        let batch = json!({"inputs": [[text], ["x"]], "raw_scores": true});
        let batch = answer(demos(), "/predict", &batch);
        assert_eq!(batch.as_array().unwrap().len(), 2);
        assert_eq!(batch[0][0]["label"], "card_arrival");
        assert!(batch[0][0]["score"].as_f64().unwrap() > 1.0, "a logit");
        for wrong in [json!([1]), json!(["a", "b", "c"]), json!([["a"], []])] {
            refuses(demos(), "/predict", &json!({"inputs": wrong}), "`inputs`");
        }
        refuses(
            demos(),
            "/predict",
            &json!({"inputs": "x", "model": "demo-lm"}),
            "labels",
        );
    }

    #[test]
    fn the_model_with_classes_is_described() {
        let info = described(demos());
        assert_eq!(info["model_id"], "demo-classifier");
        let labels = &info["model_type"]["classifier"];
        let name = labels["id2label"]["3"].as_str().unwrap();
        assert_eq!(labels["label2id"][name], 3);
        assert_eq!(info["auto_truncate"], false);
    }
}
