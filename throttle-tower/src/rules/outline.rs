//! What a file can say. The reader notes it, and the JSON Schema is made of the notes: whatever
//! asks for a field says what the field is for, and whatever reads a value says which form it has.
//!
//! Only a dry run takes notes. It has no file: every field is there, and is read once in each form.
#![cfg_attr(
    not(test),
    expect(dead_code, reason = "a program does not make the schema")
)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use toml::Spanned;
use toml::de::DeValue;

use super::form::ValueForm;

/// The notes of a dry run.
pub(super) struct Outline<'a> {
    /// What a dry run reads for each value: a text, a number, a table, and a list of a text.
    pub(super) samples: [&'a Spanned<DeValue<'a>>; 4],
    pub(super) definitions: RefCell<BTreeMap<&'static str, Definition>>,
}

/// A part that fields refer to by its name.
pub(super) struct Definition {
    pub(super) about: About,
    pub(super) content: Content,
}

pub(super) enum Content {
    Value(Forms),
    Table {
        fields: Vec<Known>,
        /// Fields of which there must be one.
        one_of: Vec<&'static str>,
    },
}

/// A field that a table can have.
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) about: About,
    pub(super) is_required: bool,
    pub(super) forms: Forms,
}

/// What a field is for.
pub(super) struct About {
    pub(super) text: &'static str,
    pub(super) default: Option<String>,
}

impl From<&'static str> for About {
    fn from(text: &'static str) -> Self {
        Self {
            text,
            default: None,
        }
    }
}

/// What a field with a default is for.
pub(super) fn by_default(default: impl ToString + Copy, text: &'static str) -> About {
    About {
        text,
        default: Some(default.to_string()),
    }
}

/// The forms that a value may have.
pub(super) type Forms = Rc<RefCell<Vec<Form>>>;

pub(super) enum Form {
    /// That of a definition.
    Named(&'static str),
    Number(u64, u64),
    /// From one millionth to all but one.
    Part,
    Flag,
    Words(Vec<&'static str>),
    List(Forms),
    Walked(&'static ValueForm),
}
