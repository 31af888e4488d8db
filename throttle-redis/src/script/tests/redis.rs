//! The part of Redis that a script sees: strings that expire, a clock, and the two libraries that
//! Redis includes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Lua, LuaOptions, MultiValue, StdLib, Table, Value, Variadic};

use crate::script::Script;

/// The stored keys, and the present time.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) now: i64,
    pub(super) entries: HashMap<Vec<u8>, Entry>,
    pub(super) writes: usize,
    /// Out of memory: writing is an error.
    pub(super) full: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Vec<u8>,
    /// When it expires, in µs, and when that was set.
    pub(super) expires: i64,
    pub(super) set_at: i64,
    pub(super) written: i64,
    /// Not a string: reading it is an error.
    pub(super) list: bool,
}

pub(super) struct Redis {
    lua: Lua,
    pub(super) store: Rc<RefCell<Store>>,
    compiled: RefCell<HashMap<String, mlua::Function>>,
}

impl Redis {
    pub(super) fn new() -> Self {
        let lua = Lua::new_with(
            StdLib::STRING | StdLib::TABLE | StdLib::MATH,
            LuaOptions::default(),
        )
        .unwrap();
        let store = Rc::new(RefCell::new(Store::default()));
        let globals = lua.globals();
        globals.set("struct", library(&lua)).unwrap();
        let redis = lua.create_table().unwrap();
        for (name, protected) in [("call", false), ("pcall", true)] {
            let store = Rc::clone(&store);
            let run = lua
                .create_function(move |lua, arguments: Variadic<Value>| {
                    match store.borrow_mut().run(lua, &arguments) {
                        Err(error) if protected => {
                            let table = lua.create_table()?;
                            table.set("err", error)?;
                            Ok(Value::Table(table))
                        }
                        Err(error) => Err(mlua::Error::runtime(error)),
                        Ok(value) => Ok(value),
                    }
                })
                .unwrap();
            redis.set(name, run).unwrap();
        }
        globals.set("redis", redis).unwrap();
        lua.load(
            "setmetatable(_G, {
                __index = function(_, name) error('no global ' .. name) end,
                __newindex = function(_, name) error('new global ' .. name) end,
            })",
        )
        .exec()
        .unwrap();
        Self {
            lua,
            store,
            compiled: RefCell::default(),
        }
    }

    /// Runs a script; the reply is one string.
    pub(super) fn eval(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<Vec<u8>, String> {
        let mut compiled = self.compiled.borrow_mut();
        let function = compiled.entry(script.sha().to_owned()).or_insert_with(|| {
            // As Redis does, the script becomes a function; Redis passes the arguments as globals,
            // while here they are local, because writing globals would fail.
            let source = format!("local KEYS, ARGV = ...\n{}", script.source());
            self.lua
                .load(source)
                .into_function()
                .unwrap_or_else(|error| panic!("{error}\n{}", script.source()))
        });
        let list = |items: &[Vec<u8>]| -> Table {
            let strings = items
                .iter()
                .map(|item| self.lua.create_string(item).unwrap());
            self.lua.create_sequence_from(strings).unwrap()
        };
        match function.call::<Value>((list(keys), list(arguments))) {
            Ok(Value::String(reply)) => Ok(reply.as_bytes().to_vec()),
            Ok(Value::Table(error)) => Err(error.get::<String>("err").unwrap()),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => {
                let error = error.to_string();
                // Finds the line of the error: the chunk's name ends in a colon and the number.
                let place = error
                    .split(':')
                    .filter_map(|part| part.parse::<usize>().ok())
                    .nth(1);
                let line =
                    place.and_then(|line| script.source().lines().nth(line.saturating_sub(2)));
                Err(format!("{error}: {line:?}"))
            }
        }
    }
}

fn text(value: &Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        // `%.17g` of a whole number below 10^17.
        Value::Number(number) if number.trunc() == *number && number.abs() < 1e17 => {
            Ok(format!("{number:.0}").into_bytes())
        }
        other => Err(format!("ERR argument {other:?}")),
    }
}

impl Store {
    fn run(&mut self, lua: &Lua, arguments: &[Value]) -> Result<Value, String> {
        let words = arguments.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let string = |bytes: &[u8]| {
            Ok(Value::String(
                lua.create_string(bytes)
                    .map_err(|error| error.to_string())?,
            ))
        };
        match words
            .iter()
            .map(Vec::as_slice)
            .collect::<Vec<_>>()
            .as_slice()
        {
            [b"TIME"] => {
                let (seconds, micros) = (
                    self.now.div_euclid(1_000_000),
                    self.now.rem_euclid(1_000_000),
                );
                let pair = [seconds, micros].map(|part| part.to_string());
                Ok(Value::Table(
                    lua.create_sequence_from(pair)
                        .map_err(|error| error.to_string())?,
                ))
            }
            [b"GET", key] => match self.entries.get(*key) {
                None => Ok(Value::Boolean(false)),
                Some(entry) if entry.list => Err(
                    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(),
                ),
                Some(entry) => string(&entry.value),
            },
            [b"DEL", key] => Ok(Value::Integer(self.entries.remove(*key).is_some().into())),
            [b"SET", ..] if self.full => {
                Err("OOM command not allowed when used memory > 'maxmemory'.".to_owned())
            }
            [b"SET", key, value, life @ ..] => {
                let (expires, set_at) = match life {
                    [b"PX", ttl] => std::str::from_utf8(ttl)
                        .ok()
                        .and_then(|ttl| ttl.parse().ok())
                        .filter(|ttl: &i64| *ttl > 0)
                        .map(|ttl| (self.now + ttl * 1_000, self.now)),
                    [b"KEEPTTL"] => {
                        let kept = self.entries.get(*key);
                        kept.map(|entry| (entry.expires, entry.set_at))
                    }
                    _ => None,
                }
                .ok_or("ERR invalid expire time in 'set' command")?;
                let entry = Entry {
                    value: value.to_vec(),
                    expires,
                    set_at,
                    written: self.now,
                    list: false,
                };
                self.entries.insert(key.to_vec(), entry);
                self.writes += 1;
                let status = lua.create_table().map_err(|error| error.to_string())?;
                status.set("ok", "OK").map_err(|error| error.to_string())?;
                Ok(Value::Table(status))
            }
            _ => Err("ERR unknown command".to_owned()),
        }
    }
}

/// The part of `struct` that the scripts use: little-endian `d`, `I4`, and `c` with a length, or
/// with 0 for the whole string.
fn library(lua: &Lua) -> Table {
    let library = lua.create_table().unwrap();
    let pack = |lua: &Lua, (format, values): (String, Variadic<Value>)| {
        let (mut bytes, mut values) = (Vec::new(), values.iter());
        for item in items(&format)? {
            let value = values
                .next()
                .ok_or_else(|| mlua::Error::runtime("too few values to pack"))?;
            match item {
                Item::Chars(length) => {
                    let Value::String(text) = value else {
                        return Err(mlua::Error::runtime("string expected"));
                    };
                    let text = text.as_bytes().to_vec();
                    let length = if length == 0 { text.len() } else { length };
                    let part = text
                        .get(..length)
                        .ok_or_else(|| mlua::Error::runtime("string too short"))?;
                    bytes.extend_from_slice(part);
                }
                number => {
                    let told = match value {
                        Value::Integer(number) => *number as f64,
                        Value::Number(number) => *number,
                        _ => return Err(mlua::Error::runtime("number expected")),
                    };
                    match number {
                        Item::Double => bytes.extend_from_slice(&told.to_le_bytes()),
                        _ => bytes.extend_from_slice(&(told as u32).to_le_bytes()),
                    }
                }
            }
        }
        lua.create_string(bytes)
    };
    library
        .set("pack", lua.create_function(pack).unwrap())
        .unwrap();
    let unpack = |lua: &Lua, (format, bytes, first): (String, mlua::LuaString, Option<usize>)| {
        let bytes = bytes.as_bytes().to_vec();
        let mut at = first
            .unwrap_or(1)
            .checked_sub(1)
            .ok_or_else(|| mlua::Error::runtime("offset must be 1 or more"))?;
        let mut values = MultiValue::new();
        for item in items(&format)? {
            let length = match item {
                Item::Double => 8,
                Item::Long => 4,
                Item::Chars(length) => length,
            };
            let part = bytes
                .get(at..at + length)
                .ok_or_else(|| mlua::Error::runtime("data string too short"))?;
            at += length;
            values.push_back(match item {
                Item::Double => Value::Number(f64::from_le_bytes(part.try_into().unwrap())),
                Item::Long => {
                    Value::Number(f64::from(u32::from_le_bytes(part.try_into().unwrap())))
                }
                Item::Chars(_) => Value::String(lua.create_string(part)?),
            });
        }
        values.push_back(Value::Number((at + 1) as f64));
        Ok(values)
    };
    library
        .set("unpack", lua.create_function(unpack).unwrap())
        .unwrap();
    library
}

#[derive(Clone, Copy)]
enum Item {
    Double,
    Long,
    Chars(usize),
}

fn items(format: &str) -> mlua::Result<Vec<Item>> {
    let mut rest = format
        .strip_prefix('<')
        .ok_or_else(|| mlua::Error::runtime("not little endian"))?;
    let mut items = Vec::new();
    while let Some(code) = rest.chars().next() {
        let digits: String = rest[1..].chars().take_while(char::is_ascii_digit).collect();
        rest = &rest[1 + digits.len()..];
        items.push(match (code, digits.as_str()) {
            ('d', "") => Item::Double,
            ('I', "4") => Item::Long,
            ('c', length) => Item::Chars(
                length
                    .parse()
                    .map_err(|_| mlua::Error::runtime("c without a length"))?,
            ),
            _ => return Err(mlua::Error::runtime(format!("format {code}{digits}"))),
        });
    }
    Ok(items)
}
