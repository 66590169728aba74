//! Names of architectures, biases and windows.

use serde_json::{Value, json};

use super::*;

fn with<T>(config: &Value, read: impl FnOnce(&Fields<'_>) -> T) -> T {
    let map = config.as_object().unwrap();
    read(&Fields {
        file: "config.json",
        path: "",
        map,
    })
}

#[test]
fn unknown_architectures_are_named() {
    let check = |name, expected: Option<&Family>| match (of(name), expected) {
        (Ok(found), Some(expected)) => assert_eq!(found, expected, "{name}"),
        (Err(error), None) => {
            let text = error.to_string();
            let part = format!("{name:?} is not supported;\nserved are the decoders Llama, ");
            assert!(text.contains(&part), "{text}");
            // Readable on a terminal.
            assert!(text.lines().count() == 2 && text.len() < 300, "{text}");
        }
        (found, _) => panic!("{name}: {found:?}"),
    };
    check("Qwen3ForCausalLM", Some(&QWEN3));
    check("Qwen2ForSequenceClassification", Some(&qwen::QWEN2));
    check("LlamaModel", Some(&llama::LLAMA));
    check("Qwen3ForTokenClassification", Some(&QWEN3));
    check("MistralForCausalLM", Some(&mistral::MISTRAL));
    check("Qwen3MoeForCausalLM", Some(&qwen::QWEN3_MOE));
    check("Gemma2Model", Some(&gemma::GEMMA2));
    check("Gemma3ForCausalLM", Some(&gemma::GEMMA3));
    check("Gemma3TextModel", Some(&gemma::GEMMA3));
    for name in [
        "Gemma3Model",
        "Gemma3ForConditionalGeneration",
        "Qwen2ForRewardModel",
        "Gemma3TextForTokenClassification",
        "Mistral",
        "BertForQuestionAnswering",
    ] {
        check(name, None);
    }
    let decoders = FAMILIES.iter().filter(|family| family.encoder.is_none());
    assert_eq!(decoders.flat_map(|family| family.architectures).count(), 29);
    assert_eq!(body("gemma3_text"), Some("Gemma3TextModel"));
    assert_eq!(body("bert"), Some("BertModel"));
    assert_eq!(body("t5"), None);
}

#[test]
fn the_type_is_the_family() {
    let check = |family: &Family, config: Value| {
        with(&config, |fields| family.check_model_type(fields)).map_err(|e| e.to_string())
    };
    assert_eq!(check(&qwen::QWEN2, json!({"model_type": "qwen2"})), Ok(()));
    assert_eq!(check(&llama::LLAMA, json!({})), Ok(()));
    let text = json!({"model_type": "gemma3_text"});
    assert_eq!(check(&gemma::GEMMA3, text), Ok(()));
    let error = check(&llama::LLAMA, json!({"model_type": "mistral"})).unwrap_err();
    assert!(error.contains("`model_type` of \"mistral\""), "{error}");
}

#[test]
fn biases_by_family() {
    let all = json!({"attention_bias": true, "mlp_bias": true});
    let check = |family: &Family, config: &Value, expected: [bool; 3]| {
        let found = with(config, |fields| family.biases(fields)).unwrap();
        assert_eq!([found.qkv, found.o, found.mlp], expected, "{}", family.name);
    };
    check(&llama::LLAMA, &all, [true, true, true]);
    check(&QWEN3, &all, [true, true, false]);
    check(&qwen::QWEN2, &all, [true, false, false]);
    check(&mistral::MISTRAL, &all, [false, false, false]);
    check(&gemma::GEMMA2, &all, [true, true, false]);
    check(&llama::LLAMA, &json!({}), [false, false, false]);
    check(&qwen::QWEN2, &json!({}), [true, false, false]);
}

#[test]
fn windows_by_family() {
    let check = |family: &Family, config: Value, expected: Option<usize>| {
        let found = with(&config, |fields| family.window(fields, 9000)).unwrap();
        assert_eq!(found, expected, "{} {config}", family.name);
    };
    check(&mistral::MISTRAL, json!({}), Some(4096));
    check(&mistral::MISTRAL, json!({"sliding_window": null}), None);
    check(&mistral::MISTRAL, json!({"sliding_window": 512}), Some(512));
    check(&llama::LLAMA, json!({"sliding_window": 512}), None);
    check(&qwen::QWEN2, json!({"sliding_window": 512}), None);
    let zero = json!({"sliding_window": 0});
    let error = with(&zero, |fields| mistral::MISTRAL.window(fields, 9000)).unwrap_err();
    assert!(error.to_string().contains("`sliding_window`"), "{error}");
}

#[test]
fn architectures_name_their_families() {
    let check = |name, expected| assert_eq!(of(name).ok(), expected, "{name}");
    check("BertModel", Some(&bert::BERT));
    check(
        "XLMRobertaForSequenceClassification",
        Some(&bert::XLM_ROBERTA),
    );
    check("RobertaForMaskedLM", Some(&bert::ROBERTA));
    check("DistilBertModel", Some(&distilbert::DISTILBERT));
    check("BertForTokenClassification", Some(&bert::BERT));
    check("MPNetModel", Some(&mpnet::MPNET));
    check("ModernBertForMaskedLM", Some(&modernbert::MODERNBERT));
    for name in [
        "ElectraModel",
        "ModernBertDecoderModel",
        "BertForQuestionAnswering",
        "Bert",
    ] {
        check(name, None);
    }
    assert_eq!(known(|of| of.encoder.is_some()).split(", ").count(), 6);
}
