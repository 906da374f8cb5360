// Runs a chapter that `make wasm` has built, as if it were the program of that name:
//
//   node --no-turbo-fast-api-calls tests/wasi.mjs ./ch03 --quick       runs build/wasm/ch03.wasm
//
// It sees this folder and the one for temporary files, and ends with the program's code. Without that option Node 20 and
// 22 crash when a program has run long enough to be optimised (github.com/nodejs/node/issues/53087).
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename } from 'node:path';
import { WASI } from 'node:wasi';

const args = process.argv.slice(2);
const wasi = new WASI({
    version: 'preview1',
    args,
    env: { TMPDIR: '/tmp', DTRAIN_DATA: process.env.DTRAIN_DATA ?? '' },
    preopens: { '.': '.', '/tmp': tmpdir() },
});
const program = await WebAssembly.compile(await readFile(`build/wasm/${basename(args[0])}.wasm`));
process.exitCode = wasi.start(await WebAssembly.instantiate(program, wasi.getImportObject()));
