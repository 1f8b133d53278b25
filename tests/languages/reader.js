// JavaScript: avsc, by the recipe of docs/consumers.md, which stands in recipe.js beside this file when it runs.

const fs = require('fs');
const path = require('path');
const readerOf = require('./recipe');

function quoted(characters) {
  const encoded = [...Buffer.from(characters)].map((byte) => {
    const character = String.fromCharCode(byte);
    return /[0-9A-Za-z]/.test(character) ? character : '%' + byte.toString(16).padStart(2, '0');
  });
  return `'${encoded.join('')}'`;
}

function real(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleBE(value);
  return 'f' + bytes.toString('hex');
}

function text(type, value) {
  if (value === null) {
    return 'null';
  }
  switch (type.typeName) {
    case 'union:unwrapped':
      return text(type.types.find((each) => each.isValid(value)), value);
    case 'union:wrapped': {
      const [branch, inner] = Object.entries(value)[0];
      return text(type.types.find((each) => each.branchName === branch), inner);
    }
    case 'record':
      return `[${type.fields.map((each) => `${quoted(each.name)}=${text(each.type, value[each.name])}`).join(',')}]`;
    case 'array':
      return `[${value.map((each) => text(type.itemsType, each)).join(',')}]`;
    case 'float':
    case 'double':
      return real(value);
    case 'string':
      return quoted(value);
    case 'bytes':
      return 'x' + value.toString('hex');
    default: // a boolean, an int, or a long, which is a BigInt
      return String(value);
  }
}

const folder = process.argv[2];
for (let number = 0; fs.existsSync(path.join(folder, `${number}.avsc`)); number++) {
  const type = readerOf(JSON.parse(fs.readFileSync(path.join(folder, `${number}.avsc`), 'utf8')));
  const newest = path.join(folder, `${number}.newest`);
  const by = fs.existsSync(newest) ? readerOf(JSON.parse(fs.readFileSync(newest, 'utf8'))) : type;
  const resolver = by === type ? undefined : by.createResolver(type);
  const records = fs.readFileSync(path.join(folder, `${number}.records`));
  const lines = [];
  for (let start = 0; start < records.length; ) {
    const end = start + 4 + records.readInt32BE(start);
    lines.push(`${number} ${text(by, by.fromBuffer(records.subarray(start + 4, end), resolver))}\n`);
    start = end;
  }
  fs.writeSync(1, lines.join(''));
}
