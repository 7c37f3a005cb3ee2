// SPDX-License-Identifier: MPL-2.0
//
// Builds the files of ../server/ui/dist. The result depends only on the sources
// and on package-lock.json.
import { build } from 'esbuild'
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const dist = process.argv[2] ?? join(here, '../server/ui/dist')

await rm(dist, { recursive: true, force: true })
await mkdir(dist, { recursive: true })
await build({
  absWorkingDir: here,
  entryPoints: { app: 'src/main.jsx' },
  outdir: dist,
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none', // licences.txt has all licences
  logLevel: 'warning',
})
for (const file of ['index.html', 'favicon.svg']) await copyFile(join(here, 'static', file), join(dist, file))

// The licences of all packages that app.js and app.css contain.
const lock = JSON.parse(await readFile(join(here, 'package-lock.json'), 'utf8'))
let licences = ''
for (const [path, { dev, version }] of Object.entries(lock.packages).sort()) {
  if (path === '' || dev) continue
  const text = await readFile(join(here, path, 'LICENSE'), 'utf8')
  licences += `${path.replace('node_modules/', '')} ${version}\n\n${text.trim()}\n\n\n`
}
await writeFile(join(dist, 'licences.txt'), licences)
