// SPDX-License-Identifier: MPL-2.0
//
// Tests the web UI in Chromium. The Go test TestUI starts it:
//
//   node browser.mjs URL DATACENTER DIRECTORY
//
// The program prints a line for each step, and waits for a line on its standard
// input where the Go test must act: a key, the fault of DATACENTER, and its end.
// Screenshots go to DIRECTORY. A failed check is a line "fail: ..." and exit status
// 1.
import axe from 'axe-core'
import { chromium } from 'playwright-core'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const [url, broken, directory] = process.argv.slice(2)
const wait = 20_000 // for one change, in ms
let failed = false
const fail = (text) => {
  failed = true
  console.log(`fail: ${text}`)
}
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const next = () => input.next()

const browser = await chromium.launch({
  executablePath: process.env.WANFED_CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
})

// viewFailed reports whether a message is about a request of the view of another
// datacenter that became unreachable in this moment. A browser logs each response
// with an error status.
const viewFailed = (m) => /status of 50\d/.test(m.text()) && m.location().url.includes('federation-status?dc=')

// open returns a page that reports messages on its console, and requests that
// leave the server or change something.
async function open(colorScheme, expected = viewFailed) {
  const page = await browser.newPage({ colorScheme, viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' })
  page.setDefaultTimeout(wait)
  page.on('console', (m) => expected(m) || fail(`console (${colorScheme}): ${m.type()}: ${m.text()}`))
  page.on('pageerror', (err) => fail(`error in the page: ${err.stack}`))
  page.on('request', (r) => {
    if (new URL(r.url()).origin !== new URL(url).origin) fail(`request of ${r.url()}`)
    if (r.method() !== 'GET') fail(`request with the method ${r.method()}: ${r.url()}`)
  })
  return page
}

// audit reports what axe finds.
async function audit(page, name) {
  const { violations } = await page.evaluate(`${axe.source}; axe.run(document)`)
  for (const v of violations) {
    const text = `axe, ${name}: ${v.impact}: ${v.id}: ${v.nodes.map((n) => `${n.target} ${n.any[0]?.message ?? ''}`).join('; ').slice(0, 500)}`
    if (['serious', 'critical'].includes(v.impact)) fail(text)
    else console.log(text)
  }
}

const shoot = (page, name) => page.screenshot({ path: join(directory, `${name}.png`), fullPage: true })

// visit shows a page and waits for its heading and for a text.
async function visit(page, hash, text) {
  await page.goto(`${url}/ui/#/${hash}`)
  await page.locator('main').getByText(text).first().waitFor()
}

const pages = [
  ['overview', '', 'Datacenters'],
  ['datacenter', `dc/${broken}`, 'Known from'],
  ['machines', 'machines', 'WAN address'],
  ['server', 'server', 'Components'],
  ['services', 'services', 'web'],
  ['service', 'services/web', 'web-1'],
  ['nodes', 'nodes', 'host1'],
  ['node', 'nodes/host1', 'web-1'],
  ['keys', 'keys/app/', 'mode'],
  ['key', 'keys/app/mode', 'blue'],
  ['resources', 'resources', 'catalog/v1/Service'],
  ['list', 'resources/catalog/v1/Node', 'host1'],
  ['resource', 'resources/catalog/v1/Node/host1', '"address"'],
]

const light = await open('light')
const dark = await open('dark')
const both = (act) => Promise.all([act('light', light), act('dark', dark)])
await light.goto(`${url}/ui/`)
await light.getByRole('heading', { name: /All \d+ datacenters are ok/ }).waitFor()

// Keyboard: the first stop skips the menu, and the menu opens a page whose heading
// has the focus then.
await light.keyboard.press('Tab')
const first = await light.evaluate(() => document.activeElement.textContent)
if (first !== 'Skip to the content') fail(`the first stop of the keyboard is ${first}`)
for (let i = 0; i < 12 && (await light.evaluate(() => document.activeElement.textContent)) !== 'Keys'; i++) await light.keyboard.press('Tab')
await light.keyboard.press('Enter')
await light.getByRole('heading', { name: 'Keys', level: 1 }).waitFor()
await light.waitForFunction(() => document.activeElement.tagName === 'H1')

for (const [name, hash, text] of pages) {
  await both(async (scheme, page) => {
    await visit(page, hash, text)
    await audit(page, `${name}, ${scheme}`)
    await shoot(page, `${name}-${scheme}`)
  })
}

// A list in pages.
await visit(light, 'keys/many/', '1–50 of 120')
await light.getByRole('button', { name: 'Next' }).click()
await light.getByText('51–100 of 120').waitFor()
if ((await light.locator('tbody tr').count()) !== 50) fail('a page of a list has not 50 rows')
// A blocking query shows a change of the list without a reload.
console.log('ready for a key')
await next()
await light.getByText('of 121').waitFor()

// A value is text, never part of the page.
await visit(light, 'keys/app/script', '<img')
if (await light.locator('pre img').count()) fail('a value became part of the page')

// What the policy of the caller refuses is shown as the server words it.
const denied = await open('light', (m) => /status of 403/.test(m.text()))
await visit(denied, 'keys/?dc=dc2', /may not|permission denied/)
await denied.close()

// A fault and its end, without a reload.
await visit(light, '', 'Datacenters')
await visit(dark, `dc/${broken}`, 'Known from')
for (const page of [light, dark]) await page.evaluate(() => { window.notReloaded = true })
console.log('ready')
await next()
await light.getByRole('heading', { name: new RegExp(`^${broken} is unreachable`) }).first().waitFor()
console.log('shown fault')
await light.getByText('What to do').first().waitFor()
await dark.getByText(`${broken} is unreachable`).waitFor()
await both(async (scheme, page) => {
  await audit(page, `fault, ${scheme}`)
  await shoot(page, `fault-${scheme}`)
})
await dark.evaluate(() => { location.hash = '#/' })
await dark.getByRole('heading', { name: new RegExp(`^${broken} is unreachable`) }).first().waitFor()
await audit(dark, 'fault, overview, dark')
await shoot(dark, 'fault-overview-dark')
console.log('ready')
await next()
await light.locator(`#datacenters tr:has(a[href="#/dc/${broken}"]) td:nth-child(2) .state.ok`).waitFor()
console.log('shown recovery')
await light.getByRole('heading', { name: /All \d+ datacenters are ok/ }).waitFor() // the other datacenters may be later
for (const page of [light, dark]) {
  if (!(await page.evaluate(() => window.notReloaded))) fail('the page was loaded again')
}
await light.setViewportSize({ width: 390, height: 800 })
await audit(light, 'narrow')
await shoot(light, 'narrow-light')
await browser.close()
process.exit(failed ? 1 : 0)
