// The form for visitors who have no session yet.
const form = document.querySelector('form') as HTMLFormElement
const alert = document.querySelector('[role=alert]') as HTMLElement

async function signIn(): Promise<void> {
  const token = String(new FormData(form).get('token') ?? '')
  const headers = { 'content-type': 'application/json', 'x-leasehold-dashboard': '1' }
  const answer = await fetch('login', { method: 'POST', headers, body: JSON.stringify({ token }) })
  if (answer.ok) location.reload()
  else alert.textContent = answer.status === 401 ? 'This is not the token.' : `The server answered ${answer.status}.`
}

form.addEventListener('submit', (event) => {
  event.preventDefault()
  alert.textContent = ''
  signIn().catch(() => (alert.textContent = 'The server does not answer.'))
})

export {}
