// The transcript as a document of Word where no server makes it, with the headings and paragraphs that
// formats/documents.py writes: XML in a zip without compression (ECMA-376 part 2, PKWARE's APPNOTE 6.3).
import { paragraphs } from "./formats.js";

const OFFICE = "http://schemas.openxmlformats.org";
const MAIN = `xmlns:w="${OFFICE}/wordprocessingml/2006/main"`;
const TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml";
const HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n';
const HEADINGS = { 1: 32, 3: 24 }; // half points
const INDENT = 840; // twentieths of a point, of text behind its time

export function docx(model, names, title) {
  const headings = Object.entries(HEADINGS).map(([level, size]) => (
    `<w:style w:type="paragraph" w:styleId="Heading${level}"><w:name w:val="heading ${level}"/><w:basedOn w:val="Normal"/><w:next w:val="Normal"/>`
    + `<w:pPr><w:keepNext/><w:spacing w:before="240" w:after="80"/><w:outlineLvl w:val="${level - 1}"/></w:pPr><w:rPr><w:b/><w:sz w:val="${size}"/></w:rPr></w:style>`
  ));
  const normal = '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/><w:pPr><w:spacing w:after="160"/></w:pPr><w:rPr><w:sz w:val="22"/></w:rPr></w:style>';
  const parts = {
    "[Content_Types].xml": `<Types xmlns="${OFFICE}/package/2006/content-types">`
      + '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
      + `<Override PartName="/word/document.xml" ContentType="${TYPE}.document.main+xml"/><Override PartName="/word/styles.xml" ContentType="${TYPE}.styles+xml"/></Types>`,
    "_rels/.rels": related("officeDocument", "word/document.xml"),
    "word/_rels/document.xml.rels": related("styles", "styles.xml"),
    "word/styles.xml": `<w:styles ${MAIN}>${normal}${headings.join("")}</w:styles>`,
    "word/document.xml": `<w:document ${MAIN}><w:body>${heading(1, title)}${paragraphs(model, names).map(told).join("")}</w:body></w:document>`,
  };
  return new Blob(zipped(parts), { type: `${TYPE}.document` });
}

function related(kind, target) {
  return `<Relationships xmlns="${OFFICE}/package/2006/relationships"><Relationship Id="rId1" Type="${OFFICE}/officeDocument/2006/relationships/${kind}" Target="${target}"/></Relationships>`;
}

function told({ name, at, text }) {
  const time = `<w:r><w:rPr><w:color w:val="6B6B6B"/><w:sz w:val="18"/></w:rPr><w:t>${at}</w:t><w:tab/></w:r>`;
  const shape = `<w:pPr><w:ind w:left="${INDENT}" w:hanging="${INDENT}"/></w:pPr>`;
  return `${name && heading(3, name)}<w:p>${shape}${time}${run(text)}</w:p>`;
}

function heading(level, text) {
  return `<w:p><w:pPr><w:pStyle w:val="Heading${level}"/></w:pPr>${run(text)}</w:p>`;
}

// Without the characters that XML cannot hold.
function run(text) {
  const marks = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const clean = text.replace(/[\0-\x08\x0b-\x1f\x7f\p{Cs}\ufffe\uffff]/gu, "").replace(/[&<>]/g, (mark) => marks[mark]);
  return `<w:r><w:t xml:space="preserve">${clean}</w:t></w:r>`;
}

function zipped(files) {
  const [parts, listed] = [[], []];
  let offset = 0;
  for (const [name, text] of Object.entries(files)) {
    const [path, data] = [name, HEAD + text].map((one) => new TextEncoder().encode(one));
    // Version 2.0, stored, on the first of January 1980, the earliest date there is.
    const about = [[2, 20], [2, 0], [2, 0], [2, 0], [2, 0x21], [4, crc32(data)], [4, data.length], [4, data.length], [2, path.length], [2, 0]];
    const head = packed([4, 0x04034b50], ...about);
    listed.push(packed([4, 0x02014b50], [2, 20], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]), path);
    parts.push(head, path, data);
    offset += head.length + path.length + data.length;
  }
  const count = Object.keys(files).length;
  const length = listed.reduce((sum, part) => sum + part.length, 0);
  return [...parts, ...listed, packed([4, 0x06054b50], [2, 0], [2, 0], [2, count], [2, count], [4, length], [4, offset], [2, 0])];
}

// Numbers as [bytes, value], least significant byte first.
function packed(...numbers) {
  return new Uint8Array(numbers.flatMap(([size, value]) => Array.from({ length: size }, (_, n) => (value >>> (8 * n)) & 255)));
}

function crc32(data) {
  let crc = -1;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}
